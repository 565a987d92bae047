"""Real English that is on every machine with Python: the documentation inside its standard library.

Only docstrings are read, from source files that are neither imported nor copied. Python versions differ a little in what they
say, so figures from this text are near, not equal, from one version to the next.
"""

import ast
import re
import sysconfig
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

# what the modules are about; a folder stands for all its files
TOPICS = {
    "concurrency": ("asyncio", "concurrent", "multiprocessing", "queue.py", "sched.py", "subprocess.py", "threading.py"),
    "files": (
        *("_pyio.py", "bz2.py", "filecmp.py", "fileinput.py", "glob.py", "gzip.py", "lzma.py", "os.py", "pathlib.py"),
        *("posixpath.py", "shutil.py", "tarfile.py", "tempfile.py", "zipfile.py", "zipfile", "pathlib"),
    ),
    "mail": ("email", "mailbox.py"),
    "network": (
        *("ftplib.py", "http", "imaplib.py", "ipaddress.py", "poplib.py", "selectors.py", "smtplib.py", "socket.py"),
        *("socketserver.py", "ssl.py", "urllib", "xmlrpc"),
    ),
    "numbers": ("_pydecimal.py", "colorsys.py", "fractions.py", "numbers.py", "random.py", "statistics.py"),
    "program code": ("ast.py", "dis.py", "importlib", "inspect.py", "pkgutil.py", "tokenize.py", "typing.py"),
    "testing": ("bdb.py", "doctest.py", "pdb.py", "profile.py", "pstats.py", "timeit.py", "trace.py", "unittest"),
    "windows": ("tkinter", "turtle.py"),
}
_MIN_WORDS = 5
# from a capital letter to a full stop; a dot inside a name or a number ends nothing
_SENTENCE = re.compile(r"[A-Z][^.?!]*(?:[.?!](?!\s|$)[^.?!]*)*[.?!](?=\s|$)")


def read_topics() -> list[tuple[str, str]]:
    """Sentences and the topic of the module that each is from, in a fixed order; what several topics say is left out."""
    found = {topic: dict.fromkeys(_sentences(modules)) for topic, modules in TOPICS.items()}
    num_topics = Counter(sentence for sentences in found.values() for sentence in sentences)
    return [(sentence, topic) for topic, sentences in found.items() for sentence in sentences if num_topics[sentence] == 1]


def read_paragraphs() -> list[str]:
    """Every paragraph of the same modules once, in a fixed order."""
    paths = (path for modules in TOPICS.values() for module in modules for path in _files(module))
    return list(dict.fromkeys(paragraph for path in paths for paragraph in _paragraphs(path)))


def _sentences(modules: tuple[str, ...]) -> Iterator[str]:
    for module in modules:
        for path in _files(module):
            for paragraph in _paragraphs(path):
                yield from (text for text in _SENTENCE.findall(paragraph) if len(text.split()) >= _MIN_WORDS)


def _paragraphs(path: Path) -> Iterator[str]:
    for docstring in _docstrings(ast.parse(path.read_bytes())):
        # examples are code, not English
        yield from (" ".join(text.split()) for text in re.split(r"\n\s*\n", docstring) if text.strip() and ">>>" not in text)


def _docstrings(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    if docstring := ast.get_docstring(node):
        yield docstring
    for inner in node.body:
        if isinstance(inner, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _docstrings(inner)


def _files(module: str) -> list[Path]:
    """The files of a module, without its tests; none if this Python has no such module."""
    library = Path(sysconfig.get_path("stdlib"))
    found = [library / module] if module.endswith(".py") else sorted((library / module).rglob("*.py"))
    return [path for path in found if path.is_file() and not {"test", "tests"} & set(path.relative_to(library).parts)]
