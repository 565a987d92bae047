"""The way from the command line into the server: says what to install where the extra is missing."""

from tensorferry.errors import MissingExtra
from tensorferry.serve.options import ServeOptions


def start(options: ServeOptions) -> int:
    """Serve until told to stop; the exit code."""
    try:
        from tensorferry.serve.server import serve
    except ModuleNotFoundError as error:
        raise MissingExtra(f'ferry serve needs {error.name}, which is not installed: pip install "tensorferry[serve]"') from error
    return serve(options)
