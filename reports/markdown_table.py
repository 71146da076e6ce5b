"""Rows of texts -> a Markdown table."""


def table(rows: list[dict[str, str]]) -> str:
    """A Markdown table, aligned for reading in a terminal too; the first column is text."""
    columns = list(rows[0])
    # Markdown's rule below a column that is aligned right has two characters at least
    widths = {c: max(2, len(c), *(len(row[c]) for row in rows)) for c in columns}

    def line(cells):
        first, *rest = columns
        return (
            "| "
            + " | ".join([cells[first].ljust(widths[first]), *(cells[c].rjust(widths[c]) for c in rest)])
            + " |"
        )

    rule = {c: "-" * widths[c] if c == columns[0] else "-" * (widths[c] - 1) + ":" for c in columns}
    return "\n".join([line(dict(zip(columns, columns, strict=True))), line(rule), *map(line, rows)])
