r"""Mathematics in the plain text of pages and docstrings, as LaTeX.

GitHub and terminals show the text as it is written: θ_i = b^(−2i/d). On the site it is typeset.
"""

import re
from collections.abc import Iterator

_FUNCTIONS = (
    "asinh|cosh?|exp|ln|log|sinh?|tanh"
    r"|(?:arg|elu|max|min|round|score|softplus|MLP|Re)(?=\()"  # words, unless called
)
_OPERATORS = {
    **{char: char for char in "=<>+/,;"},
    **{"·": r"\cdot ", "×": r"\times ", "−": "-", "±": r"\pm ", "≤": r"\le ", "≥": r"\ge "},
    **{"≪": r"\ll ", "≫": r"\gg ", "≈": r"\approx ", "↦": r"\mapsto "},
}
_BRACKETS = {"(": ")", "⟨": "⟩", "|": "|", "⌊": "⌋", "⌈": "⌉", "[": "]"}
_LATEX = {
    "⟨": r"\langle ",
    "⟩": r"\rangle ",
    "…": r"\dots ",
    "∞": r"\infty ",
    "Δ": r"\Delta ",
    "Σ": r"\sum ",
}
_LATEX |= {"⌊": r"\lfloor ", "⌋": r"\rfloor ", "⌈": r"\lceil ", "⌉": r"\rceil "}
_RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻₀₁₂₃₄₅₆₇₈₉", "0123456789-0123456789")
# A letter is one only if no others are beside it: words, names and units are text.
_ATOM = re.compile(
    rf"(?P<function>{_FUNCTIONS})(?![\w-])"
    r"|(?P<number>½|\d+(?:[.,]\d+)*)"
    r"|(?P<greek>[\u0370-\u03ff∞…])"
    r"|(?P<letter>(?!(?<=\d)e[−-]?\d)[A-Za-z](?![A-Za-z0-9]|['\u2019-][A-Za-z]|\.\w))"
)
_SCRIPT = re.compile(
    r"(?P<kind>[_^])"
    r"(?:\{(?P<braced>[^{}]*)\}|(?P<plain>max|min|[−-]?(?:\d+(?:\.\d+)?|\w(?![A-Za-z]))))"
)
_START = re.compile(r"(?<![\w.'\u2019/@#$~\\:·-])(?=[\w(⟨|⌊⌈½√−∞])")
_WORDS = {"a", "A", "I", "I/O", "R", "X"}  # letters that are words by themselves


def pieces(text: str) -> Iterator[tuple[str, str]]:
    """Yield the parts of a text in order, each with its LaTeX; "" for what is not mathematics."""
    done, position = 0, 0
    while found := _START.search(text, position):
        start = position = found.start()
        position += 1
        parser = _Parser(text)
        end, latex = parser.expression(start, within=False)
        if not latex or not _ends(text, end) or text[start:end].isdecimal():
            continue
        shown = text[start:end]
        if shown in _WORDS or not (parser.is_sure or _is_variable(shown, text[:start])):
            continue
        if done < start:
            yield text[done:start], ""
        yield shown, latex
        done = position = end
    if done < len(text):
        yield text[done:], ""


def _ends(text: str, end: int) -> bool:
    return re.match(r"[\w^_'\u2019@(\[{]|[-./+:]\w|\+", text[end:]) is None


def _is_variable(shown: str, before: str) -> bool:
    """Whether a letter by itself stands for a quantity: no article, and no unit of a number."""
    is_letter = re.fullmatch(r"[A-Za-z]|\d[cdiwLW]", shown) is not None
    return is_letter and re.search(r"[\d)][ \xa0]$", before) is None


class _Parser:
    """A parser of one expression. Its methods return where it ends, and LaTeX; "" if none."""

    def __init__(self, text: str) -> None:
        self.text, self.is_sure, self.has_letter = text, False, False

    def expression(self, at: int, within: bool) -> tuple[int, str]:
        """Parse atoms and operators. within: brackets, where commas are part of it."""
        end, latex, operator, spaces = at, "", "", within and self.text[at - 1] in "⟨|"
        while True:
            sign = re.match(r"[−±]" if operator or not latex else "", self.text[at:])
            start = at + sign.end() if sign else at
            stop, atom = self.atom(start)
            if not atom:
                return end, latex
            has_letter = re.search(r"[^\W\d_]", self.text[at if not latex else end : stop])
            if operator.strip(",; "):
                self.is_sure |= has_letter is not None or self.has_letter
            self.has_letter |= has_letter is not None
            latex += _OPERATORS.get(operator, r"\," if operator == " " else "")
            latex += _OPERATORS.get(sign[0], "") if sign else ""
            latex, end = latex + atom, stop
            spaced = " (?!$)" if spaces or self.text[start] == "Σ" else rf" (?={_FUNCTIONS})"
            comma = r"([,;]) ?|" if within else ""
            found = re.match(rf" ?([=<>+/·×−±≤≥≪≫≈↦]) ?|{comma}{spaced}", self.text[end:])
            if found:
                operator, at = (*filter(None, found.groups()), " ")[0], end + found.end()
            elif self.text[end : end + 1] == " " or end == len(self.text):
                return end, latex
            else:  # beside it: 2πb, r(i, j)
                self.is_sure |= self.text[end] == "(" and self.text[end - 1].isalpha()
                operator, at = "", end

    def atom(self, at: int) -> tuple[int, str]:
        """Parse a number, a variable, a function, a root or brackets, and its scripts."""
        char = self.text[at : at + 1]
        if char == "√":
            end, latex = self.atom(at + 1)
            self.is_sure = True
            inner = latex[1:-1] if self.text[at + 1 : at + 2] == "(" else latex
            return end, latex and rf"\sqrt{{{inner}}}"
        if char in _BRACKETS:
            end, latex = self.expression(at + 1, within=True)
            close = _BRACKETS[char]
            if not latex or self.text[end : end + 1] != close:
                return at, ""
            end, latex = end + 1, f"{_LATEX.get(char, char)}{latex}{_LATEX.get(close, close)}"
            self.is_sure |= char in "⟨|⌊⌈"
            return self.scripts(end, latex)
        found = _ATOM.match(self.text, at)
        if not found:
            return at, ""
        kind, shown = found.lastgroup, found[0]
        if kind == "function":
            latex = rf"\operatorname{{{shown}}} "
            end, latex = self.scripts(found.end(), latex)
            argument = end + (self.text[end : end + 1] == " ")
            end, inner = self.atom(argument)
            self.is_sure |= bool(inner)
            return (end, latex + inner) if inner else (at, "")
        if kind == "number":
            latex = r"\tfrac12 " if shown == "½" else shown.replace(",", "{,}")
        else:
            latex = _LATEX.get(shown, shown)
            self.is_sure |= kind == "greek" and shown not in "…"
        return self.scripts(found.end(), latex)

    def scripts(self, at: int, latex: str) -> tuple[int, str]:
        """Parse subscripts and superscripts: θ_i, b^(2/d), x', Δ₀, x²."""
        while True:
            text = self.text[at:]
            if found := re.match(r"[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+|[₀-₉]+|['\u2019](?![A-Za-z])", text):
                number = found[0].translate(_RAISED)
                below = found[0][0] in "₀₁₂₃₄₅₆₇₈₉"
                latex += "'" if number in "'\u2019" else f"{'_' if below else '^'}{{{number}}}"
                at += found.end()
            elif re.match(r"\*(?=[ ),⟩]|$)", text) and latex.endswith("}"):
                latex, at = latex + "^*", at + 1  # a complex conjugate
            elif text.startswith("^("):
                end, inner = self.expression(at + 2, within=True)
                if not inner or self.text[end : end + 1] != ")":
                    return at, latex
                latex, at = f"{latex}^{{{inner}}}", end + 1
            elif found := _SCRIPT.match(text):
                inner = found["braced"] or found["plain"]
                inner = inner.replace("-", "−")
                end, parsed = _Parser(inner).expression(0, within=True)
                inner = parsed if end == len(inner) else rf"\mathrm{{{inner}}}"
                latex += f"{found['kind']}{{{inner}}}"
                at += found.end()
            else:
                return at, latex
            self.is_sure = True
