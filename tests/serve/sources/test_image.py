"""Models from a container registry: images and artifacts, each byte compared with its digest, hostile ones refused whole."""

import base64
import gzip
import json
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from image_registry import TAR, LoopbackRegistry, PushedLayer, make_tar, name_bytes, push_over_http, write_manifest

from tensorferry.errors import BadOption
from tensorferry.serve.sources import open_mirror
from tensorferry.serve.sources.mirror import Mirror
from tensorferry.serve.sources.registry_login import find_login
from tensorferry.serve.sources.source import SourceFailed, SourceUnreachable

LARGE = 2**30


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[LoopbackRegistry]:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    made = LoopbackRegistry()
    yield made
    made.close()


def open_image(address: str, cache: Path, name: str = ":1", max_nbytes: int = LARGE) -> Mirror:
    return open_mirror(f"oci://{address}/team/models{name}", cache / "cache", max_nbytes)


def read_tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def update(address: str, cache: Path, name: str = ":1", max_nbytes: int = LARGE) -> dict[str, bytes]:
    mirror = open_image(address, cache, name, max_nbytes)
    try:
        return read_tree(mirror.update())
    finally:
        mirror.close()


def test_an_image_gives_what_its_layers_leave_below_models(registry: LoopbackRegistry, tmp_path: Path) -> None:
    shell = tarfile.TarInfo("bin/sh")
    shell.type, shell.linkname = tarfile.SYMTYPE, "/bin/busybox"
    first = {"bin/busybox": b"x", "models/net/1/model.onnx": b"one", "models/net/old.txt": b"", "models/gone/1/model.onnx": b"x"}
    second = {"models/net/.wh.old.txt": b"", "models/.wh.gone": b"", "./models/net/2/model.onnx": b"two"}
    third = {"models/net/1/.wh..wh..opq": b"", "models/net/1/model.onnx": b"new"}
    registry.push(
        "1", PushedLayer(make_tar(first, shell)), PushedLayer.packed(make_tar(second)), PushedLayer.packed(make_tar(third))
    )
    assert update(registry.address, tmp_path) == {"net/1/model.onnx": b"new", "net/2/model.onnx": b"two"}


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_names_are_read_in_every_form_of_tar(registry: LoopbackRegistry, tmp_path: Path, form: int) -> None:
    name = f"{'n' * 90}/1/model.savedmodel/{'v' * 60}.index"
    registry.push("1", PushedLayer(make_tar({name: b"x" * 700, "net/1/model.onnx": b"y"}, form=form)))
    assert update(registry.address, tmp_path) == {name: b"x" * 700, "net/1/model.onnx": b"y"}


def test_an_artifact_gives_its_files_and_folders(registry: LoopbackRegistry, tmp_path: Path) -> None:
    folder = PushedLayer.packed(
        make_tar({"other/1/model.onnx": b"o"}),
        **{"org.opencontainers.image.title": "other", "io.deis.oras.content.unpack": "true"},
    )
    registry.push("1", PushedLayer.file("net/1/model.onnx", b"one"), folder)
    assert update(registry.address, tmp_path) == {"net/1/model.onnx": b"one", "other/1/model.onnx": b"o"}


def test_an_image_of_one_model_goes_by_the_name_of_its_repository(registry: LoopbackRegistry, tmp_path: Path) -> None:
    registry.push("1", PushedLayer(make_tar({"models/1/model.onnx": b"one", "models/config.pbtxt": b""})))
    assert update(registry.address, tmp_path) == {"models/1/model.onnx": b"one", "models/config.pbtxt": b""}


def test_a_tag_is_followed_by_its_digest_and_a_digest_stays(registry: LoopbackRegistry, tmp_path: Path) -> None:
    old = registry.push("1", PushedLayer(make_tar({"net/1/model.onnx": b"one"})))
    mirror = open_image(registry.address, tmp_path)
    first = mirror.update()
    registry.asked.clear()
    assert mirror.update() == first
    assert [(method, path) for method, path, _ in registry.asked] == [("HEAD", "/v2/team/models/manifests/1")]
    registry.push("1", PushedLayer(make_tar({"net/1/model.onnx": b"two"})))
    assert read_tree(mirror.update()) == {"net/1/model.onnx": b"two"}
    assert len(list((tmp_path / "cache" / "layers").iterdir())) == 1
    mirror.close()
    registry.asked.clear()
    assert update(registry.address, tmp_path) == {"net/1/model.onnx": b"two"}
    assert not [path for _, path, _ in registry.asked if "/blobs/" in path]  # all of it was here
    assert update(registry.address, tmp_path / "other", f"@{old}") == {"net/1/model.onnx": b"one"}


def test_an_index_gives_the_image_for_this_machine(registry: LoopbackRegistry, tmp_path: Path) -> None:
    digests = {
        machine: registry.push(machine, PushedLayer.file("net/1/model.onnx", machine.encode())) for machine in ("amd64", "arm64")
    }
    entries = [{"digest": digest, "platform": {"os": "linux", "architecture": name}} for name, digest in digests.items()]
    entries.append({"digest": name_bytes(b"attestation"), "platform": {"os": "unknown", "architecture": "unknown"}})
    registry.put_manifest("1", json.dumps({"manifests": entries}).encode())
    machine = subprocess.run(["uname", "-m"], capture_output=True, text=True, check=True).stdout.strip()
    expected = {"x86_64": b"amd64", "aarch64": b"arm64"}[machine]
    assert update(registry.address, tmp_path) == {"net/1/model.onnx": expected}


def make_link(name: str, kind: bytes, target: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def break_checksum(archive: bytes) -> bytes:
    return b"y" + archive[1:]


GOOD = {"net/1/model.onnx": b"good"}


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (PushedLayer(make_tar(GOOD | {"../evil": b"x"})), "would leave its folder"),
        (PushedLayer(make_tar(GOOD | {"/etc/evil": b"x"})), "would leave its folder"),
        (PushedLayer(make_tar(GOOD | {"net/../../evil": b"x"})), "would leave its folder"),
        (PushedLayer.file("../../evil", b"x"), "would leave its folder"),
        (PushedLayer(make_tar(GOOD, make_link("net/1/x", tarfile.SYMTYPE, "/etc/passwd"))), "is a link"),
        (PushedLayer(make_tar(GOOD, make_link("net/1/x", tarfile.LNKTYPE, "net/1/model.onnx"))), "is a link"),
        (PushedLayer(make_tar(GOOD, make_link("net/1/x", tarfile.CHRTYPE, ""))), "is a link or a device"),
        (PushedLayer.packed(make_tar({"net/1/model.onnx": bytes(3 * 2**20)})), "unpack to more than"),
        (PushedLayer(make_tar({"net/1/model.onnx": bytes(3 * 2**20)})), "--source-size"),
        (PushedLayer(make_tar({"net/" * 70 + "model.onnx": b""})), "folders deep"),
        (PushedLayer(break_checksum(make_tar(GOOD))), "another checksum"),
        (PushedLayer(make_tar({"net/1/model.onnx": bytes(2000)})[:1500]), "in the middle of a file"),
        (PushedLayer(b"rubbish"), "in the middle of a header"),
        (PushedLayer(b"rubbish", f"{TAR}+gzip"), "does not unpack"),
        (PushedLayer(gzip.compress(make_tar(GOOD))[:-20], f"{TAR}+gzip"), "does not unpack"),
        (PushedLayer(b"x", f"{TAR}+zstd"), "known are tar archives"),
        (PushedLayer(make_tar({"net/" + "x" * 70_000: b""})), "a header of"),
    ],
)
def test_a_hostile_layer_is_refused_and_what_was_there_stays(
    registry: LoopbackRegistry, tmp_path: Path, layer: PushedLayer, reason: str
) -> None:
    registry.push("1", PushedLayer(make_tar(GOOD)))
    mirror = open_image(registry.address, tmp_path, max_nbytes=2**21)
    mirror.update()
    registry.push("1", PushedLayer(make_tar(GOOD)), layer)
    with pytest.raises(SourceFailed, match=re.escape(reason)) as caught:
        mirror.update()
    assert "\n" not in str(caught.value)
    assert read_tree(mirror.folder) == GOOD
    assert not (tmp_path / "evil").exists()
    assert not list((tmp_path / "cache").rglob("*.part"))
    mirror.close()


def test_layers_share_one_size_when_unpacked(registry: LoopbackRegistry, tmp_path: Path) -> None:
    layers = [PushedLayer.packed(make_tar({f"net/{number}/model.onnx": bytes(2**20)})) for number in (1, 2, 3)]
    registry.push("1", *layers)
    with pytest.raises(SourceFailed, match="unpack to more than"):
        update(registry.address, tmp_path, max_nbytes=2 * 2**20)
    assert len(update(registry.address, tmp_path, max_nbytes=4 * 2**20)) == 3


def test_bytes_that_are_not_those_of_the_digest_are_no_model(registry: LoopbackRegistry, tmp_path: Path) -> None:
    good, bad = b"the model", b"an other!"
    digest = registry.push("1", PushedLayer.file("net/1/model.onnx", good))
    registry.blobs[name_bytes(good)] = bad
    mirror = open_image(registry.address, tmp_path)
    assert read_tree(mirror.update()) == {}
    assert "are not the" in mirror.told["net"]
    registry.blobs[name_bytes(good)] = good * 2
    assert read_tree(mirror.update()) == {}
    registry.blobs[name_bytes(good)] = good
    assert read_tree(mirror.update()) == {"net/1/model.onnx": good}
    mirror.close()
    registry.manifests[digest] = write_manifest([])
    with pytest.raises(SourceFailed, match="expected sha256"):
        open_image(registry.address, tmp_path, f"@{digest}")
    archive = make_tar(GOOD)
    registry.push("2", PushedLayer(archive))
    registry.blobs[name_bytes(archive)] = make_tar({"net/1/model.onnx": b"evil"})
    with pytest.raises(SourceFailed, match="are not the"):
        update(registry.address, tmp_path / "archive", ":2")


def test_a_login_opens_the_registry_and_goes_nowhere_else(
    registry: LoopbackRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.password = "secret"
    registry.push("1", PushedLayer.file("net/1/model.onnx", b"one"))
    with pytest.raises(SourceFailed, match="is denied"):
        open_image(registry.address, tmp_path)
    auth = base64.b64encode(b"ferry:secret").decode()
    (tmp_path / "docker").mkdir()
    (tmp_path / "docker" / "config.json").write_text(json.dumps({"auths": {registry.address: {"auth": auth}}}))
    elsewhere = LoopbackRegistry()
    elsewhere.blobs[name_bytes(b"one")] = b"one"
    there = f"http://{elsewhere.address}/v2/team/models/blobs/{name_bytes(b'one')}"
    registry.fault = lambda path: (307, {"Location": there}, b"") if "/blobs/" in path else None
    assert update(registry.address, tmp_path) == {"net/1/model.onnx": b"one"}
    assert [authorization for _, _, authorization in elsewhere.asked] == [""]
    elsewhere.close()
    monkeypatch.setenv("REGISTRY_USERNAME", "ferry")
    monkeypatch.setenv("REGISTRY_PASSWORD", "wrong")
    with pytest.raises(SourceFailed, match="denied") as caught:
        open_image(registry.address, tmp_path / "wrong")
    assert "wrong" not in str(caught.value)


@pytest.mark.parametrize("place", ["file:///etc/passwd", "ftp://127.0.0.1/x", "gopher:x"])
def test_a_registry_cannot_send_the_server_to_files(registry: LoopbackRegistry, tmp_path: Path, place: str) -> None:
    registry.push("1", PushedLayer.file("net/1/model.onnx", b"one"))
    registry.fault = lambda path: (302, {"Location": place}, b"") if "/blobs/" in path else None
    mirror = open_image(registry.address, tmp_path)
    assert read_tree(mirror.update()) == {}
    assert "without TLS" in mirror.told["net"]
    registry.fault = lambda path: (302, {"Location": path}, b"") if "/blobs/" in path else None
    mirror.update()
    assert "more than 5 times" in mirror.told["net"]
    mirror.close()


def test_what_is_no_image_is_one_line(registry: LoopbackRegistry, tmp_path: Path) -> None:
    for name in (":", "@sha256:1", ":1/x", "/UPPER"):
        with pytest.raises(BadOption, match="names no image"):
            open_image(registry.address, tmp_path, name)
    with pytest.raises(SourceFailed, match="there is no"):
        open_image(registry.address, tmp_path, ":missing")
    with pytest.raises(SourceUnreachable, match="does not answer"):
        open_image("127.0.0.1:9", tmp_path)
    bad: list[bytes] = [b"[]", b"rubbish", b"{}", b'{"layers": [{}]}', b'{"layers": [{"digest": "sha256:../../x"}]}']
    for manifest in (*bad, b'{"manifests": 7}', b"[" * 100_000):
        registry.put_manifest("1", manifest)
        with pytest.raises(SourceFailed):
            open_image(registry.address, tmp_path)
    registry.fault = lambda _: (500, {}, b"")
    with pytest.raises(SourceUnreachable, match="answers 500"):
        open_image(registry.address, tmp_path)


def test_logins_are_found_where_tools_write_them(tmp_path: Path) -> None:
    path = tmp_path / "auth.json"
    path.write_text(
        json.dumps({"auths": {"https://index.docker.io/v1/": {"identitytoken": "t"}, "r": {"username": "u", "password": "p"}}})
    )
    found = {"REGISTRY_AUTH_FILE": str(path)}
    hub, own = find_login("docker.io", found), find_login("r", found)
    assert hub is not None
    assert hub.identity_token == "t"
    assert own is not None
    assert (own.user, own.password) == ("u", "p")
    assert "p'" not in repr(own)
    assert find_login("elsewhere", found) is None
    for text in ("rubbish", "[]", '{"auths": 7}', '{"auths": {"r": {"auth": "!"}}, "credHelpers": 3}'):
        path.write_text(text)
        assert find_login("r", found) is None


def test_a_real_registry_is_read_and_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = shutil.which("docker-registry") or shutil.which("registry")
    if program is None:
        pytest.skip("needs docker-registry (apt-get install docker-registry)")
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    settings = tmp_path / "registry.yml"
    settings.write_text(
        f"version: 0.1\nlog: {{level: info}}\nstorage: {{filesystem: {{rootdirectory: {tmp_path / 'blobs'}}}}}\n"
        "http: {addr: '127.0.0.1:0', secret: x}\n"
    )
    with subprocess.Popen([program, "serve", settings], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stderr is not None
            address = next(found[1] for line in server.stderr if (found := re.search(r"listening on (127\.0\.0\.1:\d+)", line)))
            push_over_http(address, "1", PushedLayer.packed(make_tar({"models/net/1/model.onnx": b"one"})))
            mirror = open_image(address, tmp_path)
            assert read_tree(mirror.update()) == {"net/1/model.onnx": b"one"}
            push_over_http(address, "1", PushedLayer.file("net/1/model.onnx", b"two"))
            assert read_tree(mirror.update()) == {"net/1/model.onnx": b"two"}
            mirror.close()
        finally:
            server.terminate()
