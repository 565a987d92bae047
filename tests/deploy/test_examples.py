"""The examples: small ones are trained, optimised, served as services and asked as their pages say."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pipeline_files import RunningPipeline

from tensorferry.cli import main
from tensorferry.deploy.examples import EXAMPLES
from tensorferry.serve.pipelines.definition import read_pipeline

# the same examples with less to train on, in a process of their own, where frameworks may warn
_MAKE = """
import sys
from pathlib import Path
from tensorferry.deploy.examples import EXAMPLES, make_example, trained

trained._NUM_REVIEWS = 20
trained._BRAIN_SETTINGS.update(resolution="16", base="2")
trained._REVIEWS_SETTINGS.update(batch="2", max_length="8")
make_example(EXAMPLES[sys.argv[1]], Path(sys.argv[2]), 1, 1.0)
"""


@pytest.fixture(scope="module", params=[name for name, example in EXAMPLES.items() if example.steps])
def example(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("examples")
    command = [sys.executable, "-c", _MAKE, request.param, str(root / request.param)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in root.iterdir()] == [request.param]  # no part is left
    return root / request.param


@pytest.fixture
def serve_pipeline() -> Iterator[list[RunningPipeline]]:
    started: list[RunningPipeline] = []
    yield started
    for running in started:
        running.stop()


_SERVICES = {
    "reviews": {"text": {"reviews", "reviews_transform", "reviews_labels"}, "classifier": {"reviews_engine"}},
    "brain": {"scans": {"brain", "brain_transform", "brain_volumes"}, "segmenter": {"brain_engine"}},
}
_SAYS = {"reviews": "recommended", "brain": "white: "}


@pytest.mark.slow
def test_an_example_is_two_services_that_answer_its_client(
    example: Path, serve_pipeline: list[RunningPipeline], tmp_path: Path
) -> None:
    pipeline = read_pipeline(example / "pipeline.yaml")
    found = {each.name: {path.name for path in each.folder.iterdir()} for each in pipeline.services}
    assert found == _SERVICES[example.name]
    running = RunningPipeline(example / "pipeline.yaml", entry=pipeline.entry)
    serve_pipeline.append(running)
    running.wait_for("ready: ", 200)
    command = [sys.executable, str(example / "ask.py"), "--url", f"http://{running.http}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert _SAYS[example.name] in done.stdout
    if example.name == "brain":
        assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_its_page_says_what_was_reached_and_whose_the_data_are(example: Path) -> None:
    text = (example / "README.md").read_text()
    assert EXAMPLES[example.name].data in text
    assert re.search(r"(accuracy|dice) [01]\.\d{3}", text)
    assert "for 1 steps" in text


@pytest.mark.slow
def test_its_chart_has_both_services(example: Path, tmp_path: Path) -> None:
    chart = tmp_path / "charts" / example.name
    assert main(["deploy", str(example / "pipeline.yaml"), "--to", str(chart), "--no-measure"]) == 0
    assert sorted(path.name for path in (chart / "charts").iterdir()) == sorted(_SERVICES[example.name])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["review", "--to", "{tmp}/new"], "no example 'review' (did you mean 'reviews'?); there are reviews, brain, page"),
        (["page", "--to", "{tmp}/new", "--steps", "5"], "nothing is trained for 'page'; leave out --steps 5"),
        (["brain", "--to", "{tmp}"], "is already there, and nothing is written over"),
        (["brain", "--to", "{tmp}/no/new"], "make it first"),
    ],
)
def test_a_bad_option_is_one_line(arguments: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["deploy", "example", *(each.format(tmp=tmp_path) for each in arguments)]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1
    assert not list(tmp_path.iterdir())
