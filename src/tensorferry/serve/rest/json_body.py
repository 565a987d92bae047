"""JSON that clients send: looked at before it is parsed, as the parser keeps the interpreter for itself, in a thread too."""

import base64
from typing import Any

import orjson

from tensorferry.serve.core.faults import InvalidRequest, TooLarge
from tensorferry.serve.core.limits import MAX_JSON_VALUES
from tensorferry.serve.core.memory import Charge

_PIECE_NBYTES = 2**20  # looked at, or decoded, at a time
_VALUE_NBYTES = 64  # of JSON that take the parser as long as a value, whatever is in them
_NO_BYTES = memoryview(b"")
_SPACE = b" \t\r\n"


def read_json(data: bytes) -> dict[str, Any]:
    """The JSON object in a body; an empty body is an empty object."""
    if not data:
        return {}
    try:
        found = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"failed to parse the request JSON: {error}") from None
    if not isinstance(found, dict):
        raise InvalidRequest("the request JSON must be an object")
    return found


def check_json(text: bytes) -> int:
    """The memory that JSON takes at most as objects of Python; raises TooLarge for what takes long to parse."""
    num_values, num_nbytes = len(text) // _VALUE_NBYTES, 0
    for begin in range(0, len(text), _PIECE_NBYTES):
        part = begin, begin + _PIECE_NBYTES
        numbers, texts = text.count(b",", *part), text.count(b'"', *part) // 2
        lists, objects, keys = text.count(b"[", *part), text.count(b"{", *part), text.count(b":", *part)
        num_values += numbers + texts + 3 * lists + 8 * objects + 6 * keys
        num_nbytes += 48 * numbers + 64 * texts + 96 * lists + 320 * objects + 96 * keys
        if num_values > MAX_JSON_VALUES:
            raise TooLarge(
                f"the JSON holds more than {MAX_JSON_VALUES} values, or as much text ({_VALUE_NBYTES} bytes count as one); "
                "send tensors as binary data behind it"
            )
    return len(text) + num_nbytes


def read_load(body: bytes, charge: Charge) -> tuple[str, dict[str, bytes]]:
    """The configuration and the files that come with a request to load a model; for a thread."""
    text, found = _cut_files(body)
    charge.add(check_json(text) + sum(map(len, found.values())))
    parameters = read_json(text).get("parameters", {})
    if not isinstance(parameters, dict) or not all(isinstance(value, str) for value in parameters.values()):
        raise InvalidRequest("the parameters of a load must be texts: 'config', and 'file:...' in base64")
    try:
        files = {
            key: _decode_base64(memoryview(value.encode()) if value else found.get(key, _NO_BYTES))
            for key, value in parameters.items()
            if key.startswith("file:")
        }
    except ValueError as error:
        raise InvalidRequest(f"a file of the load is not base64: {error}") from None
    return parameters.get("config", ""), files


def _cut_files(body: bytes) -> tuple[bytes, dict[str, memoryview]]:
    """The JSON without the texts of its files, and these: parsed with it, they would take long, and lie in memory twice."""
    whole, kept, found, done = memoryview(body), [], {}, 0
    at = _find(body, b'"file:', 0)
    while at >= 0:
        key_end = body.find(b'"', at + 1, at + 1024)
        begin = _skip_colon(body, key_end + 1) if key_end > 0 and body[at - 1 : at] != b"\\" else -1
        end = _find(body, b'"', begin) if begin > 0 else -1
        key = body[at + 1 : key_end]
        if end > 0 and b"\\" not in key and _find(body, b"\\", begin, end) < 0:
            found[key.decode(errors="replace")] = whole[begin:end]
            kept.append(whole[done:begin])
            done = end
        at = _find(body, b'"file:', max(at + 1, end))
    return b"".join([*kept, whole[done:]]), found


def _skip_colon(body: bytes, at: int) -> int:
    """Where the text begins that is the value of a key which ends at `at`; below zero where none does."""
    rest = body[at : at + 64].lstrip(_SPACE)
    value = rest[1:].lstrip(_SPACE)
    return at + len(body[at : at + 64]) - len(value) + 1 if rest[:1] == b":" and value[:1] == b'"' else -1


def _find(body: bytes, wanted: bytes, begin: int, end: int | None = None) -> int:
    """As `bytes.find`, giving others their turn on the way."""
    end = len(body) if end is None else end
    for at in range(begin, end, _PIECE_NBYTES):
        found = body.find(wanted, at, min(end, at + _PIECE_NBYTES + len(wanted) - 1))
        if found >= 0:
            return found
    return -1


def _decode_base64(text: memoryview) -> bytes:
    pieces = [text[at : at + _PIECE_NBYTES] for at in range(0, len(text), _PIECE_NBYTES)]
    if any(bytes(piece[-1:]) == b"=" for piece in pieces[:-1]):
        raise ValueError("it ends before its end")
    return b"".join(base64.b64decode(piece, validate=True) for piece in pieces)
