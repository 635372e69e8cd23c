"""Expressions over a kernel's parameters: `"ceil(N / TILE)"`, `"BLOCK_X * BLOCK_Y <= 256"`.

An expression is Python's own notation with most of the language taken away. `ast` parses the text, one pass
over the tree turns every permitted node into a closure and refuses every other, and evaluation calls those
closures: `eval` and `compile` are not used, so an expression can read the parameters that it is given and
nothing else. It has no attributes, subscripts, comprehensions, assignments or calls beyond the functions of
`FUNCTIONS`.

It also cannot be used to exhaust the process that evaluates it: text and nesting are bounded, strings can
only be compared, and a power or a shift of more than `MAX_BITS` bits is an error before it is computed.
"""

from __future__ import annotations

import ast
import math
import operator
import sys
from collections.abc import Callable, Mapping

from tunewire.errors import InvalidExpression

__all__ = ["FUNCTIONS", "Expression", "Value"]

#: What a parameter may be, and what an expression may give.
Value = int | float | bool | str

MAX_LENGTH = 2000
MAX_DEPTH = 50
MAX_BITS = 1024

_Number = int | float
_Parameters = Mapping[str, Value]
_Term = Callable[[_Parameters], Value]
# One step of a chained comparison: whether it holds, and the value that the next step compares with.
_Link = Callable[[Value, _Parameters], tuple[bool, Value]]


class Expression:
    """One parsed expression over named parameters.

    `text` is what was parsed and `names` the parameters that it reads. Two expressions are equal when their
    text is. It can be pickled, and is parsed again where it is unpickled.

    Permitted: numbers, strings, True and False; `+ - * / // % ** << >> & | ^ ~`; comparisons, also chained;
    `and`, `or`, `not` (which give True or False); `a if condition else b`; `x in (1, 2, 3)` and `not in`; and
    the functions min, max, abs, ceil, floor and pow.

    >>> grid = Expression.parse("ceil(N / TILE)")
    >>> sorted(grid.names)
    ['N', 'TILE']
    >>> grid.evaluate({"N": 100, "TILE": 16})
    7
    """

    __slots__ = ("_term", "names", "text")

    text: str
    names: frozenset[str]

    def __init__(self, text: str) -> None:
        parser = _Parser(text)
        self.text = text
        self._term = parser.parse()
        self.names = frozenset(parser.names)

    @classmethod
    def parse(cls, text: str) -> Expression:
        """The expression that `text` spells. InvalidExpression, with the reason, where it is of another
        form."""
        return cls(text)

    def evaluate(self, parameters: Mapping[str, Value]) -> Value:
        """The expression's value where each of its names has the value that `parameters` gives it.

        InvalidExpression where a name has no value, or where the values cannot be combined (a division by
        zero, a string in arithmetic, a number that grows too large).
        """
        try:
            return self._term(parameters)
        except KeyError as error:
            known = ", ".join(sorted(parameters)) or "none"
            reason = f"there is no parameter {error.args[0]!r} (there is: {known})"
            raise InvalidExpression(text=self.text, reason=reason) from None
        except (ArithmeticError, TypeError, ValueError) as error:
            raise InvalidExpression(text=self.text, reason=str(error)) from error

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expression) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"Expression({self.text!r})"

    def __reduce__(self) -> tuple[type[Expression], tuple[str]]:
        return Expression, (self.text,)


def _number(value: Value) -> _Number:
    if isinstance(value, str):
        raise TypeError(f"{value!r} is text, and only numbers can be calculated with")
    return value


def _power(base: _Number, exponent: _Number) -> _Number:
    if isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * exponent > MAX_BITS:
        raise OverflowError(f"{base} ** {exponent} is too large")
    try:
        result = base**exponent
    except OverflowError:
        raise OverflowError(f"{base} ** {exponent} is too large") from None
    if isinstance(result, complex):
        raise ValueError(f"{base} ** {exponent} is not a real number")  # noqa: TRY004 - the operands' types are right
    return result


def _integer(value: _Number) -> int:
    if not isinstance(value, int):
        raise TypeError(f"{value} is not a whole number, and only those have bits")
    return value


def _on_bits(apply: Callable[[int, int], int]) -> Callable[[_Number, _Number], _Number]:
    return lambda a, b: apply(_integer(a), _integer(b))


def _shift_left(value: int, by: int) -> int:
    if by > 0 and value.bit_length() + by > MAX_BITS:
        raise OverflowError(f"{value} << {by} is too large")
    return value << by


_BINARY: dict[type[ast.operator], Callable[[_Number, _Number], _Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
    ast.LShift: _on_bits(_shift_left),
    ast.RShift: _on_bits(operator.rshift),
    ast.BitAnd: _on_bits(operator.and_),
    ast.BitOr: _on_bits(operator.or_),
    ast.BitXor: _on_bits(operator.xor),
}

_UNARY: dict[type[ast.unaryop], Callable[[_Number], _Number]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
    ast.Invert: lambda value: ~_integer(value),
}

_COMPARE: dict[type[ast.cmpop], Callable[[Value, Value], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}

#: The functions that an expression may call, each with the least and the most arguments that it takes.
FUNCTIONS: dict[str, tuple[Callable[..., _Number], int, int]] = {
    "min": (min, 2, sys.maxsize),
    "max": (max, 2, sys.maxsize),
    "abs": (abs, 1, 1),
    "ceil": (math.ceil, 1, 1),
    "floor": (math.floor, 1, 1),
    "pow": (_power, 2, 2),
}


class _Parser:
    """One pass over the tree of one text: each permitted node becomes a closure, each name is noted."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.names: set[str] = set()
        self._depth = 0

    def parse(self) -> _Term:
        if not isinstance(self.text, str):
            raise InvalidExpression(text=repr(self.text), reason="an expression is text")
        if len(self.text) > MAX_LENGTH:
            reason = f"it is longer than {MAX_LENGTH} characters"
            raise InvalidExpression(text=self.text[:40] + "...", reason=reason)
        try:
            tree = ast.parse(self.text.strip(), mode="eval")
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            why = error.msg if isinstance(error, SyntaxError) else str(error)
            raise InvalidExpression(text=self.text, reason=why or "it cannot be parsed") from None
        return self._term(tree.body)

    def _refuse(self, what: str) -> InvalidExpression:
        return InvalidExpression(text=self.text, reason=what)

    def _source(self, node: ast.expr) -> str:
        # Not ast.unparse: it recurses, and a refused node may hold a tree of any depth.
        return (ast.get_source_segment(self.text.strip(), node) or "")[:40]

    def _term(self, node: ast.expr) -> _Term:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._refuse(f"it is nested more than {MAX_DEPTH} deep")
        try:
            return self._dispatch(node)
        finally:
            self._depth -= 1

    def _dispatch(self, node: ast.expr) -> _Term:
        match node:
            case ast.Constant(value=value) if isinstance(value, int | float | str):
                return lambda _: value
            case ast.Name(id=name):
                self.names.add(name)
                return operator.itemgetter(name)
            case ast.BinOp(left=left, op=op, right=right):
                return self._binary(_BINARY.get(type(op)), left, right)
            case ast.UnaryOp(op=op, operand=operand):
                return self._unary(op, operand)
            case ast.BoolOp(op=op, values=values):
                return self._boolean(op, values)
            case ast.Compare():
                return self._comparison(node)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                condition, yes, no = self._term(test), self._term(body), self._term(orelse)
                return lambda p: yes(p) if condition(p) else no(p)
            case ast.Call():
                return self._call(node)
        raise self._refuse(f"{self._source(node)} is not allowed here")

    def _binary(
        self, apply: Callable[[_Number, _Number], _Number] | None, left: ast.expr, right: ast.expr
    ) -> _Term:
        if apply is None:
            raise self._refuse("matrix products are not allowed here")
        a, b = self._term(left), self._term(right)
        return lambda p: apply(_number(a(p)), _number(b(p)))

    def _unary(self, op: ast.unaryop, operand: ast.expr) -> _Term:
        term = self._term(operand)
        if isinstance(op, ast.Not):
            return lambda p: not term(p)
        apply = _UNARY[type(op)]
        return lambda p: apply(_number(term(p)))

    def _boolean(self, op: ast.boolop, values: list[ast.expr]) -> _Term:
        terms = [self._term(value) for value in values]
        if isinstance(op, ast.And):
            return lambda p: all(term(p) for term in terms)
        return lambda p: any(term(p) for term in terms)

    def _comparison(self, node: ast.Compare) -> _Term:
        links: list[_Link] = []
        for op, right in zip(node.ops, node.comparators, strict=True):
            make = self._membership if isinstance(op, ast.In | ast.NotIn) else self._link
            links.append(make(op, right))
        first = self._term(node.left)

        def holds(parameters: _Parameters) -> bool:
            value = first(parameters)
            for link in links:
                true, value = link(value, parameters)
                if not true:
                    return False
            return True

        return holds

    def _link(self, op: ast.cmpop, right: ast.expr) -> _Link:
        apply = _COMPARE.get(type(op))
        if apply is None:
            raise self._refuse("'is' compares objects; values are compared with ==")
        term = self._term(right)

        def compare(left: Value, parameters: _Parameters) -> tuple[bool, Value]:
            value = term(parameters)
            return apply(left, value), value

        return compare

    def _membership(self, op: ast.cmpop, right: ast.expr) -> _Link:
        if not isinstance(right, ast.Tuple | ast.List | ast.Set):
            raise self._refuse("the right side of 'in' is a list of values, such as (8, 16, 32)")
        terms = [self._term(element) for element in right.elts]
        wanted = isinstance(op, ast.In)

        def contained(left: Value, parameters: _Parameters) -> tuple[bool, Value]:
            return (left in [term(parameters) for term in terms]) is wanted, left

        return contained

    def _call(self, node: ast.Call) -> _Term:
        if not isinstance(node.func, ast.Name) or node.func.id not in FUNCTIONS:
            raise self._refuse(
                f"{self._source(node.func)} is not one of the functions {', '.join(FUNCTIONS)}"
            )
        if node.keywords or any(isinstance(argument, ast.Starred) for argument in node.args):
            raise self._refuse(f"{node.func.id} takes plain arguments")
        apply, least, most = FUNCTIONS[node.func.id]
        if not least <= len(node.args) <= most:
            count = f"{least}" if least == most else f"{least} or more"
            raise self._refuse(f"{node.func.id} takes {count} argument{'s' if most > 1 else ''}")
        terms = [self._term(argument) for argument in node.args]
        return lambda p: apply(*(_number(term(p)) for term in terms))
