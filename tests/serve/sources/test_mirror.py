"""Models of a bucket, copied to this machine: whole or not at all, and the old ones until then."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from object_server import Environ, ObjectServer

from tensorferry.errors import BadOption
from tensorferry.serve.sources import open_mirror
from tensorferry.serve.sources.mirror import MAX_NUM_FILES, Mirror
from tensorferry.serve.sources.source import SourceFailed, SourceFile

LARGE = 2**40
DENIED = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"


@pytest.fixture
def bucket(
    s3: ObjectServer, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[tuple[ObjectServer, str]]:
    """The server, and a prefix that a test has to itself."""
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    yield s3, request.node.name
    s3.fault = None


def open_at(prefix: str, cache: Path, max_nbytes: int = LARGE) -> Mirror:
    return open_mirror(f"s3://bucket/{prefix}", cache, max_nbytes)


def read_tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_new_state_of_the_source_is_a_new_folder_and_the_old_one_stays_until_nobody_uses_it(
    bucket: tuple[ObjectServer, str], tmp_path: Path
) -> None:
    s3, prefix = bucket
    s3.put(f"{prefix}/a/1/model.onnx", b"one")
    s3.put(f"{prefix}/a/config.pbtxt", b"")
    s3.put(f"{prefix}/b/1/model.onnx", b"b")
    s3.put(f"{prefix}/README.md", b"not a model")
    s3.put(f"{prefix}/c/", b"")  # how a console shows an empty folder
    mirror = open_at(prefix, tmp_path)
    first = mirror.update()
    assert read_tree(first) == {"a/1/model.onnx": b"one", "a/config.pbtxt": b"", "b/1/model.onnx": b"b"}
    assert mirror.update() == first
    s3.put(f"{prefix}/a/2/model.onnx", b"two")
    s3.delete(f"{prefix}/b/1/model.onnx")
    second = mirror.update()
    assert read_tree(second) == {"a/1/model.onnx": b"one", "a/2/model.onnx": b"two", "a/config.pbtxt": b""}
    mirror.prune([first / "a"])
    assert read_tree(first)["b/1/model.onnx"] == b"b"
    mirror.prune([second / "a"])
    assert not first.exists()
    assert read_tree(second)["a/2/model.onnx"] == b"two"
    mirror.close()


def test_a_file_that_changes_during_the_download_leaves_the_old_model_until_all_of_the_new_one_is_here(
    bucket: tuple[ObjectServer, str], tmp_path: Path
) -> None:
    s3, prefix = bucket
    for name in ("model.bin", "model.xml"):
        s3.put(f"{prefix}/net/1/{name}", b"old")
    mirror = open_at(prefix, tmp_path)
    old = read_tree(mirror.update())
    for name in ("model.bin", "model.xml"):
        s3.put(f"{prefix}/net/1/{name}", b"new")
    num_writes = 0

    def change(environ: Environ) -> None:
        nonlocal num_writes
        if environ["REQUEST_METHOD"] == "GET" and environ["PATH_INFO"].endswith("model.xml"):
            num_writes += 1
            s3.put(f"{prefix}/net/1/model.xml", b"newer %d" % num_writes)

    s3.fault = change
    mirror.update()
    assert num_writes > 1  # however often it is tried, the file is not the listed one any more
    assert read_tree(mirror.folder) == old
    s3.fault = None
    assert read_tree(mirror.update())["net/1/model.xml"] == b"newer %d" % num_writes
    mirror.close()


def test_an_upload_that_is_under_way_is_left_for_the_next_look(bucket: tuple[ObjectServer, str], tmp_path: Path) -> None:
    s3, prefix = bucket
    s3.put(f"{prefix}/net/1/model.onnx", b"old")
    mirror = open_at(prefix, tmp_path)
    old = mirror.update()
    s3.put(f"{prefix}/net/2/model.xml", b"first")
    assert mirror.update(only_settled=True) == old
    s3.put(f"{prefix}/net/2/model.bin", b"second")
    assert mirror.update(only_settled=True) == old
    assert "net/2/model.bin" in read_tree(mirror.update(only_settled=True))
    mirror.close()


def test_a_server_that_dies_leaves_what_was_there_and_another_run_begins_with_it(tmp_path: Path) -> None:
    own = ObjectServer()
    own.put("models/net/1/model.onnx", b"one")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in own.environment.items():
            patch.setenv(name, value)
        mirror = open_at("models", tmp_path)
        folder = mirror.update()
        own.put("models/net/1/model.onnx", b"two")
        own.fault = lambda environ: ("500 Broken", b"") if environ["PATH_INFO"].endswith("model.onnx") else None
        assert mirror.update() == folder  # what cannot be read stays as it was
        own.close()
        with pytest.raises(SourceFailed, match="cannot list s3://bucket/models"):
            mirror.update()
        assert read_tree(mirror.folder) == {"net/1/model.onnx": b"one"}
        mirror.close()
        again = open_at("models", tmp_path)
        assert read_tree(again.folder) == {"net/1/model.onnx": b"one"}
        again.close()
    assert not [path for path in tmp_path.rglob("*") if path.name.endswith(".part")]


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("s3://missing/models", "there is no such bucket"),
        ("s3://bucket/nothing-here", "no models are at"),
        ("s3://denied/models", "access is denied"),
        ("s3:///models", "names no place"),
        ("s3://key:secret@bucket/models", "put credentials into the environment"),
        ("s4://bucket/models", "did you mean 's3'"),
    ],
)
def test_a_source_that_cannot_be_used_is_one_line(
    bucket: tuple[ObjectServer, str], tmp_path: Path, url: str, reason: str
) -> None:
    bucket[0].fault = lambda environ: ("403 Forbidden", DENIED) if environ["PATH_INFO"].startswith("/denied") else None
    with pytest.raises(Exception, match=reason) as caught:
        open_mirror(url, tmp_path, LARGE).close()
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, "http://127.0.0.1:9 does not answer"),
        (
            {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_METADATA_ENDPOINT": "http://127.0.0.1:9"},
            "no credentials are in the environment",
        ),
    ],
    ids=["store", "credentials"],
)
def test_what_is_missing_is_said(
    bucket: tuple[ObjectServer, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], reason: str
) -> None:
    for name, value in variables.items():
        if value:
            monkeypatch.setenv(name, value)
        else:
            monkeypatch.delenv(name)
    with pytest.raises(SourceFailed, match=f"cannot list s3://bucket/models: {reason}"):
        open_at("models", tmp_path)


def test_models_beyond_the_size_are_not_taken_and_the_others_are(bucket: tuple[ObjectServer, str], tmp_path: Path) -> None:
    s3, prefix = bucket
    s3.put(f"{prefix}/small/1/model.onnx", b"x" * 10)
    s3.put(f"{prefix}/vast/1/model.onnx", b"x" * 1000)
    mirror = open_at(prefix, tmp_path, max_nbytes=100)
    assert set(read_tree(mirror.update())) == {"small/1/model.onnx"}
    assert "--source-size" in mirror.told["vast"]
    mirror.close()


def test_only_models_that_are_asked_for_are_downloaded(bucket: tuple[ObjectServer, str], tmp_path: Path) -> None:
    s3, prefix = bucket
    for name in ("a", "b"):
        s3.put(f"{prefix}/{name}/1/model.onnx", name.encode())
    mirror = open_at(prefix, tmp_path)
    folder = mirror.update(["b"])
    assert set(read_tree(folder)) == {"b/1/model.onnx"}
    assert {path.name for path in folder.iterdir()} == {"a", "b"}
    mirror.close()


def test_two_servers_do_not_share_a_cache(bucket: tuple[ObjectServer, str], tmp_path: Path) -> None:
    s3, prefix = bucket
    s3.put(f"{prefix}/a/1/model.onnx", b"a")
    mirror = open_at(prefix, tmp_path)
    with pytest.raises(BadOption, match="another server"):
        open_at(prefix, tmp_path)
    mirror.close()
    open_at(prefix, tmp_path).close()


class Listing:
    """A source that lists what a test says."""

    url = "test://listing"

    def __init__(self, *files: SourceFile) -> None:
        self.files = files
        self.extra = b""

    def list_files(self) -> Iterator[SourceFile]:
        yield from self.files

    def read(self, file: SourceFile) -> Iterator[bytes]:
        yield b"x" * file.nbytes + self.extra


@pytest.mark.parametrize(
    "path", ["net/../../evil", "net/./x", "net//x", "/net/x", "net/a\\b", "net/" + "x/" * 20 + "y", "net/" + "x" * 300, "net/\0"]
)
def test_names_that_leave_the_folder_are_refused_and_the_model_with_them(path: str, tmp_path: Path) -> None:
    good = SourceFile("net/1/model.onnx", 3, "1")
    source = Listing(good, SourceFile("other/1/model.onnx", 3, "1"))
    mirror = Mirror(source, tmp_path / "cache", LARGE)
    mirror.update()
    source.files = (
        good,
        SourceFile("net/2/model.onnx", 3, "1"),
        SourceFile("other/2/model.onnx", 3, "1"),
        SourceFile(path, 3, "1"),
    )
    expected = {"net/1/model.onnx", "other/2/model.onnx"}
    if path.startswith("/"):
        expected.add("net/2/model.onnx")  # nobody knows whose it is
    assert set(read_tree(mirror.update())) == expected
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]
    mirror.close()


def test_more_bytes_than_were_listed_are_no_model(tmp_path: Path) -> None:
    source = Listing(SourceFile("net/1/model.onnx", 3, "1"))
    source.extra = b"more"
    mirror = Mirror(source, tmp_path, LARGE)
    assert read_tree(mirror.update()) == {}
    mirror.close()


def test_a_bucket_of_too_many_files_is_refused(tmp_path: Path) -> None:
    mirror = Mirror(Listing(*(SourceFile(f"net/1/{number}", 0, "1") for number in range(MAX_NUM_FILES + 1))), tmp_path, LARGE)
    with pytest.raises(SourceFailed, match="more than"):
        mirror.check()
    mirror.close()
