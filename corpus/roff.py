"""Reads the paragraphs out of a manual page in roff, with the macros of the package `man`."""

import re

# macros of fonts: what joins their arguments
FONTS = dict.fromkeys(("BI", "BR", "IB", "IR", "RB", "RI"), "") | dict.fromkeys(
    ("B", "I", "SM", "SB", "R"), " "
)
PARAGRAPHS = {"PP", "P", "LP", "HP"}
CHARACTERS = {
    "em": "—", "en": "–", "hy": "-", "aq": "'", "dq": '"', "oq": "‘", "cq": "’", "lq": "“", "rq": "”",
    "Fo": "«", "Fc": "»", "bu": "•", "co": "©", "rs": "\\", "ti": "~", "ha": "^", "ga": "`", "mu": "×",
    "<=": "≤", ">=": "≥", "->": "→", "<-": "←", "+-": "±", "ss": "ß", "tm": "™", "Eu": "€", "%0": "‰",
}  # fmt: skip
ESCAPE = re.compile(
    r"\\(?:f(?:\((..)|\[([^]]*)\]|(.))"  # fonts
    r"|\((..)|\[([^]]*)\]"  # characters by name
    r"|\*(?:\(..|\[[^]]*\]|.)|s[+-]?\d|[hvwX]'[^']*'"  # strings, sizes, movements
    r"|(.))",
    re.DOTALL,
)
SINGLE = {"-": "-", "e": "\\", " ": " ", "~": " ", "0": " ", "\\": "\\", "'": "´", "`": "`", ".": "."}


def sections(page: str) -> list[list[tuple[str, str]]]:
    """The (kind, text) of the paragraphs from one heading to the next. Code and tables are left out."""
    reader = _Reader()
    for line in page.splitlines():
        reader.read(line)
    reader.end()
    return reader.sections


def plain(text: str) -> str:
    """A line without its escapes."""

    def character(match):
        name = match[4] or match[5]
        if name:
            if found := re.fullmatch(r"u([0-9A-F]{4,6})", name):
                return chr(int(found[1], 16))
            return CHARACTERS.get(name, "")
        return SINGLE.get(match[6], "") if match[6] else ""

    return ESCAPE.sub(character, text)


class _Reader:
    def __init__(self):
        self.sections: list[list[tuple[str, str]]] = [[]]
        self.kind, self.words = "P", []
        self.awaited = None  # the kind of the block that the next line is
        self.code = self.table = False

    def end(self, kind: str = "P"):
        """Ends a block and begins another of this kind."""
        if text := " ".join(" ".join(self.words).split()):
            self.sections[-1].append((self.kind, text))
        self.kind, self.words = kind, []

    def read(self, line: str):
        if re.match(r"[.']?\\\"", line) or not line.strip(". '"):
            return  # a comment, or nothing
        found = re.match(r"[.']\s*(\w+)\s*(.*)", line)
        if not found:
            self.add(line)
            return
        name, rest = found.groups()
        if name in ("nf", "EX", "TS", "fi", "EE", "TE"):
            self.end()
            self.code = name in ("nf", "EX", "TS")
        elif self.code and name not in ("SH", "SS"):
            return
        elif name in ("SH", "SS"):
            self.code = False
            self.end(name)
            self.sections.append([])
            self.awaited = name
            if rest:
                self.add(" ".join(arguments(rest)))
        elif name in FONTS:
            if rest:
                self.add(FONTS[name].join(arguments(rest)))
        elif name in PARAGRAPHS:
            self.end()
        elif name == "IP":
            self.end("tag")
            self.words = [plain(word) for word in arguments(rest)[:1]]
            self.end("IP")
        elif name in ("TP", "TQ"):
            self.end("tag")
            self.awaited = "tag"
        elif name in ("RS", "RE"):
            self.end()

    def add(self, line: str):
        if self.code:
            return
        self.words.append(plain(line))
        if self.awaited:
            self.end()
            self.awaited = None


def arguments(rest: str) -> list[str]:
    """The arguments of a macro; quotation marks hold blanks together."""
    return [a or b for a, b in re.findall(r'"((?:[^"]|"")*)"?|((?:\\.|[^\s"])(?:\\.|\S)*)', rest)]
