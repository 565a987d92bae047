"""The graph of an exported program, vetted before torch reads it.

torch makes Python of a graph and runs it: sizes and guards are evaluated, names of nodes and inputs become source code, targets
are looked up by name and called, and what describes containers may name modules to import. So every text in a graph is either
a plain word, or follows the rule of its field; what only describes where a node came from is left out.
"""

import ast
import json
import re
from collections.abc import Callable
from typing import Any

from tensorferry.serve.runtimes.program_graph import vet_target
from tensorferry.serve.runtimes.trust import Untrusted


def _split(words: str) -> frozenset[str]:
    return frozenset(words.split())


_WORD = re.compile(r"[\w.+-]{0,1024}")  # nothing that could end a name or a string in source code, or call
_MAX_EXPRESSION = 10_000  # characters
_MAX_EXPONENT = 64
_FUNCTIONS = _split(
    "Abs Add And CeilDiv CeilToInt CleanDiv Eq Equality FloatPow FloatTrueDiv FloorDiv FloorToInt Ge GreaterThan Gt "
    "Identity IntTrueDiv Integer IsNonOverlappingAndDenseIndicator LShift Le LessThan Lt Max Min Mod ModularIndexing Mul Ne "
    "Not Or Pow PowByNatural PythonMod RShift Rational RoundDecimal RoundToInt StrictGreaterThan StrictLessThan ToFloat "
    "TruncToFloat TruncToInt Unequality Where ceiling floor sqrt"
)
_MATH = frozenset(("ceil", "floor", "isnan", "sqrt", "trunc"))
_MEASURES = frozenset(("size", "stride", "storage_offset"))  # of an input, in guards
_CONTAINERS = frozenset(("builtins.tuple", "builtins.list", "builtins.dict", "collections.OrderedDict"))


def vet_graph(data: bytes) -> bytes:
    """The same program without what only describes it; raises Untrusted, or ValueError where it is no program."""
    program = json.loads(data)
    if not isinstance(program, dict) or not isinstance(program.get("graph_module"), dict):
        raise ValueError("its graph is no JSON object")
    module = program["graph_module"]
    module["metadata"] = {}
    module["module_call_graph"] = module.get("module_call_graph", [])[:1]  # the others tell of modules that are inlined
    return json.dumps(_vet(program, "", False)).encode()


def vet_words(value: Any) -> None:
    """Raise Untrusted unless every text in a JSON value, keys included, is a plain word."""
    _vet(value, "", False)


def check_word(text: str) -> str:
    """The text, if it can stand in source code as a name or within quotes without ending them; else raises Untrusted."""
    if not _WORD.fullmatch(text):
        raise Untrusted(f"the name {text[:80]!r}")
    return text


def _vet(value: Any, field: str, is_argument: bool) -> Any:
    """A value as torch may read it; `is_argument`: below the inputs of a node, where texts stay values."""
    if field in _RULES:
        items = value if isinstance(value, list) else [value]
        if not all(isinstance(item, str) for item in items):
            raise Untrusted(f"a {field} that is no text")
        vetted = [_RULES[field](item) for item in items]
        return vetted if isinstance(value, list) else vetted[0]
    if isinstance(value, dict):
        if "as_custom_obj" in value or "custom_obj" in value:
            raise Untrusted("an object of a class of its own")
        for key in value:
            _ = _vet_expression(key) if field == "range_constraints" else check_word(key)
        return {key: _vet_field(field, key, item, is_argument) for key, item in value.items()}
    if isinstance(value, list):
        return [_vet(item, field, is_argument) for item in value]
    if isinstance(value, str) and not (is_argument and field in ("as_string", "as_strings")):
        check_word(value)
    return value


def _vet_field(owner: str, field: str, value: Any, is_argument: bool) -> Any:
    """A field of what stands in the field `owner`."""
    if (owner, field) == ("nodes", "metadata"):
        return {}
    # the graph of a branch or a loop is an argument as well, and has inputs of its own
    return _vet(value, field, field != "graph" and (is_argument or (owner, field) == ("nodes", "inputs")))


def _vet_expression(text: str) -> str:
    return _vet_source(text, _is_arithmetic)


def _vet_guard(text: str) -> str:
    return _vet_source(text, lambda node: _is_arithmetic(node, _is_measure))


def _vet_source(text: str, is_allowed: Callable[[ast.AST], bool]) -> str:
    try:
        tree = ast.parse(text if len(text) <= _MAX_EXPRESSION else "", mode="eval")
        if is_allowed(tree.body):
            return ast.unparse(tree)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        pass
    raise Untrusted(f"the expression {text[:80]!r}")


def _is_arithmetic(node: ast.AST, is_leaf: Callable[[ast.AST], bool] = lambda _: False) -> bool:
    match node:
        case ast.operator() | ast.unaryop() | ast.boolop() | ast.cmpop() | ast.Constant(value=bool() | int() | float()):
            return True
        case ast.Name(id=name):
            return not name.startswith("_")
        case (
            ast.BinOp(left=base, op=ast.Pow() | ast.LShift(), right=exponent)
            | ast.Call(func=ast.Name(id="Pow" | "PowByNatural" | "FloatPow" | "LShift"), args=[base, exponent], keywords=[])
        ):
            return _is_small_power(base, exponent) and _is_arithmetic(base, is_leaf)
        case ast.BinOp() | ast.UnaryOp() | ast.BoolOp() | ast.Compare():
            return all(_is_arithmetic(child, is_leaf) for child in ast.iter_child_nodes(node))
        case ast.Call(func=ast.Name(id="Symbol" | "Float"), args=[ast.Constant(value=str(text))], keywords=keywords):
            return bool(_WORD.fullmatch(text)) and all(isinstance(keyword.value, ast.Constant) for keyword in keywords)
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
            return name in _FUNCTIONS and all(_is_arithmetic(argument, is_leaf) for argument in arguments)
        case ast.Call(func=ast.Attribute(value=ast.Name(id="math"), attr=name), args=arguments, keywords=[]):
            return name in _MATH and all(_is_arithmetic(argument, is_leaf) for argument in arguments)
    return is_leaf(node)


def _is_small_power(base: ast.AST, exponent: ast.AST) -> bool:
    """Whether it is a power that ends: of numbers alone it is worked out at once, however many digits it has."""
    match exponent:
        case ast.Call(func=ast.Name(id="Integer" | "Rational"), args=arguments):
            numbers: list[Any] = arguments
        case _:
            numbers = [exponent]
    plain = [number.operand if isinstance(number, ast.UnaryOp) else number for number in numbers]
    is_small = all(isinstance(number, ast.Constant) and _is_number(number.value, _MAX_EXPONENT) for number in plain)
    return is_small and not any(_raises(node) for node in ast.walk(base))


def _is_number(value: Any, most: int) -> bool:
    return isinstance(value, int | float) and abs(value) <= most


def _raises(node: ast.AST) -> bool:
    match node:
        case ast.Pow() | ast.LShift() | ast.Call(func=ast.Name(id="Pow" | "PowByNatural" | "FloatPow" | "LShift")):
            return True
    return False


def _is_measure(node: ast.AST) -> bool:
    """Whether it is an input or a size of one, as in `L['x']['mask'].size()[0]`."""
    match node:
        case ast.Name(id="L"):
            return True
        case ast.Subscript(value=owner, slice=ast.Constant(value=str() | int() as key)):
            return bool(_WORD.fullmatch(str(key))) and _is_measure(owner)
        case ast.Call(func=ast.Attribute(value=owner, attr=name), args=[], keywords=[]):
            return name in _MEASURES and _is_measure(owner)
    return False


def _vet_spec(text: str) -> str:
    """What a call's arguments or results look like: tuples, lists and dicts."""
    try:
        protocol, root = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        raise Untrusted(f"the tree {text[:80]!r}") from None
    return json.dumps([protocol, _vet_tree(root)])


def _vet_tree(node: Any) -> Any:
    match node:
        case {"type": None, "context": None, "children_spec": []}:
            return node
        case {"type": str(kind), "context": str(context), "children_spec": list(children)} if kind in _CONTAINERS:
            keys = json.loads(context)
            if keys is not None and not (isinstance(keys, list) and all(isinstance(key, str | int) for key in keys)):
                raise Untrusted(f"the keys {context[:80]!r}")
            for key in keys or ():
                check_word(str(key))
            return {"type": kind, "context": json.dumps(keys), "children_spec": [_vet_tree(child) for child in children]}
    found = node.get("type") if isinstance(node, dict) else node
    raise Untrusted(f"a container of the type {str(found)[:80]!r}")


_RULES: dict[str, Callable[[str], str]] = {
    "target": vet_target,
    "as_operator": vet_target,
    "expr_str": _vet_expression,
    "guards_code": _vet_guard,
    "in_spec": _vet_spec,
    "out_spec": _vet_spec,
}
