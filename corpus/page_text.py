"""The text of a documentation page in HTML, or in Mallard, the XML of GNOME's help.

Blocks are lines, with an empty line around paragraphs. Menus, scripts, forms and pictures are left out.
"""

import re
from html.parser import HTMLParser

LINES = {"br", "tr", "li", "dt", "dd", "option", "caption", "item"}
PARAGRAPHS = {
    *("p", "div", "section", "article", "main", "blockquote", "figure", "title", "steps", "list", "note"),
    *("h1", "h2", "h3", "h4", "h5", "h6", "ul", "ol", "dl", "table", "pre", "hr", "code-block", "screen"),
}
CELLS = {"td", "th"}
KEEP_BLANKS = {"pre", "screen"}
# elements without text of the page, by their name
LEFT_OUT = {
    *("head", "script", "style", "nav", "header", "footer", "form", "select", "button", "noscript"),
    *("svg", "math", "template", "info", "media"),
}
# and by a class, a role or an id
MENUS = {
    *("navigation", "navheader", "navfooter", "nav", "nav_header", "nav_footer", "navbar", "topnav"),
    *("navsettop", "navsetbottom", "t-navbar", "siblingnav", "spirit-nav", "breadcrumb", "breadcrumbs"),
    *("langmenu", "sidebar", "sidebar-wrapper", "sphinxsidebar", "related", "toc", "tocset", "contents"),
    *("menu", "quickview", "toplang", "bottomlang", "anchor", "headerlink", "header-anchor", "skip-link"),
    *("editsection", "mw-editsection", "versionbox", "footer", "printfooter", "copyright", "search"),
    "copyright-footer",
}
NAMED = ("class", "id", "role")
VOID = {"br", "hr", "img", "input", "link", "meta", "col", "area", "base", "wbr", "source", "embed"}


def page_text(page: str) -> str:
    """The text of a page: no blanks at the ends of lines, at most one empty line in a row."""
    parser = _Page()
    parser.feed(page)
    parser.close()
    text = "".join(parser.parts)
    text = re.sub(r"[ \t\r\f\v\xa0]+\n", "\n", text)
    return re.sub(r"\n{3,}", "\n\n", text).strip()


class _Page(HTMLParser):
    def __init__(self):
        super().__init__()
        self.parts: list[str] = ["\n\n"]
        self.skipped: str | None = None  # the element that is being left out
        self.depth = 0  # of elements with its name inside it
        self.verbatim = 0

    def handle_starttag(self, tag, attrs):
        if self.skipped:
            self.depth += tag == self.skipped
            return
        if tag not in VOID and tag not in ("body", "html", "main"):
            words = {
                word.lower() for key, value in attrs if key in NAMED and value for word in value.split()
            }
            if tag in LEFT_OUT or not MENUS.isdisjoint(words):
                self.skipped, self.depth = tag, 1
                return
        self._edge(tag)
        self.verbatim += tag in KEEP_BLANKS

    def handle_startendtag(self, tag, attrs):
        if not self.skipped:
            self._edge(tag)

    def handle_endtag(self, tag):
        if self.skipped:
            self.depth -= tag == self.skipped
            if self.depth == 0:
                self.skipped = None
            return
        if tag in KEEP_BLANKS:
            self.verbatim = max(0, self.verbatim - 1)
        self._edge(tag)

    def handle_data(self, data):
        if self.skipped:
            return
        if not self.verbatim:
            data = re.sub(r"\s+", " ", data)
            if self.parts[-1][-1:] in ("\n", " "):
                data = data.lstrip(" ")
        if data:
            self.parts.append(data)

    def _edge(self, tag: str) -> None:
        if tag in PARAGRAPHS:
            self.parts.append("\n\n")
        elif tag in LINES and not self.parts[-1].endswith("\n"):
            self.parts.append("\n")
        elif tag in CELLS and self.parts[-1][-1:] not in ("\n", " "):
            self.parts.append(" ")
