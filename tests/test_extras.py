"""What is missing is said with the command that brings it."""

import subprocess
import sys

import pytest

_CODE = """
import sys
sys.modules[{module!r}] = None
from tensorferry.errors import MissingExtra
{use}
"""


@pytest.mark.parametrize(
    ("module", "use", "message"),
    [
        (
            "sklearn",
            "from tensorferry.recipes.data.images import PixelScale, load_digits as use; "
            "use_it = lambda: use(32, PixelScale((0, 0, 0), (1, 1, 1)))",
            "the set of digits needs sklearn",
        ),
        (
            "PIL",
            "import numpy; from tensorferry.recipes.data.images import open_picture as use; "
            "use_it = lambda: use(numpy.zeros((2, 2), 'uint8'))",
            "reading pictures needs PIL",
        ),
    ],
)
def test_a_missing_package_names_the_extra(module: str, use: str, message: str) -> None:
    code = _CODE.format(module=module, use=use) + "try:\n    use_it()\nexcept MissingExtra as error:\n    print(error)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == f'{message}, which is not installed: pip install "tensorferry[recipes]"\n', done.stderr
