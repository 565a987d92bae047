"""The engine that a search chose: call it, ask for its report, save it where the server finds it."""

from pathlib import Path
from typing import Any

from tensorferry.errors import BadModel
from tensorferry.inference.exam import Exam
from tensorferry.inference.folder import Folder
from tensorferry.inference.outcome import Outcome
from tensorferry.inference.report import EngineReport
from tensorferry.inference.repository import read_target
from tensorferry.inference.samples import name_samples
from tensorferry.inference.saving import save_engine
from tensorferry.inference.source import Arrays, Source
from tensorferry.serve.tensors import Array


class Engine:
    """A model as the fastest engine that gives its answers.

    `engine(x)` takes the model's inputs as arrays and gives its output as an array, several as a dict.
    """

    def __init__(self, source: Source, exam: Exam, outcome: Outcome, folder: Folder) -> None:
        assert outcome.chosen.candidate is not None
        self.source = source
        self.exam = exam
        self.outcome = outcome
        self.candidate = outcome.chosen.candidate
        self.signature = source.signature
        self._folder = folder  # its files live as long as the engine
        self._runtime = self.candidate.load(self.signature)
        self._runner = self._runtime.new_runner()
        self._is_closed = False

    def __call__(self, *arrays: Any, **by_name: Any) -> Array | Arrays:
        """The outputs for inputs in order or by name."""
        self._refuse_closed()
        if arrays and by_name:
            raise BadModel("give the inputs in order or by name, not both")
        example = by_name or (arrays[0] if len(arrays) == 1 else arrays)
        names = [tensor.name for tensor in self.signature.outputs]
        results = self._runner.run(name_samples(example, self.signature), names)
        return results[0] if len(results) == 1 else dict(zip(names, results, strict=True))

    def __repr__(self) -> str:
        return f"<Engine of {self.source.title}: {self.candidate.title}, {self.outcome.speedup:.2f}x the original>"

    def report(self) -> EngineReport:
        """Every candidate that was tried, and why it won or lost."""
        return EngineReport(self.outcome)

    def save(self, path: str | Path, pipeline: bool = True) -> Path:
        """Save where a server finds it, as "models/reviews" (the next version) or "models/reviews/1"; returns that folder.

        Where the model came with a transform, clients send an image or a text, unless `pipeline` is off.
        """
        root, name, version = read_target(Path(path))
        return self.save_as(root, name, version, pipeline)

    def save_as(self, repository: Path, name: str, version: int | None = None, pipeline: bool = True) -> Path:
        """The same with the parts apart: a name may be a number, too."""
        self._refuse_closed()
        return save_engine(self, repository, name, version, pipeline)

    def close(self) -> None:
        """Give back the weights and the files; what was saved stays."""
        if self._is_closed:
            return
        self._is_closed = True
        self._runner.close()
        self._runtime.close()
        self._folder.remove()

    def _refuse_closed(self) -> None:
        if self._is_closed:
            raise BadModel("this engine is closed: its weights and files are gone; call and save it before close()")
