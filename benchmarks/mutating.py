"""Changes of one operator, comparison, constant or returned value in a Python source.

`changes(text)` lists every change that a mutant may have. A change replaces a few characters, and
line numbers stay. Strings, messages of errors, printed text, annotations, decorators, assertions
and `__repr__` have no changes: no test observes them in a way that matters.
"""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterator

ARITHMETIC = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "*"),
    ast.Pow: ("**", "*"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
}
COMPARISONS = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.In: ("in", "not in"),
    ast.NotIn: (r"not\s+in", "in"),
    ast.Is: ("is", "is not"),
    ast.IsNot: (r"is\s+not", "is"),
}
FUNCTIONS = ("minimum maximum", "min max", "any all", "argmax argmin", "floor ceil", "sin cos")
OPPOSITES = {
    name: other for pair in map(str.split, FUNCTIONS) for name, other in (pair, reversed(pair))
}
UNSEEN_FUNCTIONS = {"__repr__", "__str__"}
UNSEEN_CALLS = {"print", "warn", "warning", "info", "debug", "log", "echo", "UserError"}
UNSEEN_ARGUMENTS = {"indent", "stacklevel", "help", "description", "doc"}


@dataclasses.dataclass(frozen=True, order=True)
class Change:
    """The bytes from `start` to `end` of a source are replaced by `new`; `line` counts from 1."""

    start: int
    end: int
    new: str
    line: int
    kind: str

    def applied(self, text: str) -> str:
        source = text.encode()
        return (source[: self.start] + self.new.encode() + source[self.end :]).decode()

    def lines(self, text: str) -> tuple[str, str]:
        """Returns the changed lines before and after."""
        source, after = text.encode(), self.applied(text).encode()
        first = source.rfind(b"\n", 0, self.start) + 1
        last = source.find(b"\n", self.end) % (len(source) + 1)
        return source[first:last].decode(), after[first : last - len(source) + len(after)].decode()


class _Source:
    """A source with the byte offsets of its nodes."""

    def __init__(self, text: str):
        self.bytes = text.encode()
        self.tree = ast.parse(text)
        self.starts = [0]
        for line in self.bytes.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))

    def span(self, node: ast.expr) -> tuple[int, int]:
        return (
            self.starts[node.lineno - 1] + node.col_offset,
            self.starts[node.end_lineno - 1] + node.end_col_offset,
        )

    def text(self, node: ast.expr) -> str:
        start, end = self.span(node)
        return self.bytes[start:end].decode()

    def change(self, start: int, end: int, new: str, kind: str) -> Change:
        return Change(start, end, new, self.bytes[:start].count(b"\n") + 1, kind)

    def between(self, left: ast.expr, right: ast.expr, words: tuple[str, str], kind: str):
        """Yields the change of the operator between two operands."""
        start, end = self.span(left)[1], self.span(right)[0]
        gap = self.bytes[start:end].decode()
        pattern = words[0] if words[0][0].isalpha() else re.escape(words[0])
        if "#" not in gap and (match := re.search(pattern, gap)):
            yield self.change(start + match.start(), start + match.end(), words[1], kind)


def _literal(node: ast.expr) -> bool:
    """Returns whether arithmetic with this operand joins texts, collections or paths."""
    texts = (ast.JoinedStr, ast.List, ast.Tuple, ast.Dict, ast.Set, ast.ListComp)
    return isinstance(node, texts) or (
        isinstance(node, ast.Constant) and not isinstance(node.value, (int, float))
    )


def _name(call: ast.Call) -> str:
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def _seen(node: ast.AST) -> Iterator[ast.AST]:
    """Yields `node` and the nodes below it that a test can observe."""
    if isinstance(node, (ast.JoinedStr, ast.Raise, ast.Assert)):
        return
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        return
    if isinstance(node, ast.FunctionDef) and node.name in UNSEEN_FUNCTIONS:
        return
    if isinstance(node, ast.Call) and _name(node) in UNSEEN_CALLS:
        return
    if isinstance(node, ast.keyword) and node.arg in UNSEEN_ARGUMENTS:
        return
    yield node
    unseen = ("annotation", "returns", "decorator_list")
    for field, value in ast.iter_fields(node):
        if field in unseen:
            continue
        children = value if isinstance(value, list) else [value]
        if isinstance(node, ast.Call) and _name(node) == "isinstance" and field == "args":
            children = children[:1]
        for child in children:
            if isinstance(child, ast.AST):
                yield from _seen(child)


def _of_operators(source: _Source, node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
        if not (_literal(node.left) or _literal(node.right)):
            words = ARITHMETIC[type(node.op)]
            yield from source.between(node.left, node.right, words, "arithmetic")
    elif isinstance(node, ast.Compare):
        lefts = [node.left, *node.comparators]
        for left, operator, right in zip(lefts, node.ops, node.comparators, strict=False):
            yield from source.between(left, right, COMPARISONS[type(operator)], "comparison")
    elif isinstance(node, ast.BoolOp):
        words = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:], strict=False):
            yield from source.between(left, right, words, "and/or")
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
        start = source.span(node)[0]
        if isinstance(node.op, ast.Not):
            yield source.change(start, start + 3, "", "not")
        else:
            yield source.change(start, start + 1, "+", "sign")


def _of_values(source: _Source, node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float)):
        new = not node.value if isinstance(node.value, bool) else node.value + 1
        yield source.change(*source.span(node), repr(new), "constant")
    elif isinstance(node, ast.Call):
        for left, right in zip(node.args, node.args[1:], strict=False):
            same = ast.dump(left) == ast.dump(right)
            if (
                not same
                and not isinstance(left, ast.Starred)
                and not isinstance(right, ast.Starred)
            ):
                (start, middle), (behind, end) = source.span(left), source.span(right)
                gap = source.bytes[middle:behind].decode()
                new = f"{source.text(right)}{gap}{source.text(left)}"
                yield source.change(start, end, new, "arguments")
        end, name = source.span(node.func)[1], _name(node)
        if name in OPPOSITES:
            yield source.change(end - len(name), end, OPPOSITES[name], "function")
    elif isinstance(node, ast.Return) and node.value is not None:
        if not isinstance(node.value, ast.Constant):
            yield source.change(*source.span(node.value), "None", "return")


WEAK = ("return", "arguments")


def changes(text: str) -> list[Change]:
    """Returns the changes, in the order of the source. Exchanged arguments and `return None`, which
    mostly end in an error at once, stand only for a line without another change."""
    source = _Source(text)
    every = [
        change
        for node in _seen(source.tree)
        for function in (_of_operators, _of_values)
        for change in function(source, node)
    ]
    lines = {change.line for change in every if change.kind not in WEAK}
    return sorted(c for c in every if c.kind not in WEAK or c.line not in lines)
