from reports.markdown_table import table


def test_columns_are_aligned():
    lines = table([{"a": "x", "bb": "1"}, {"a": "yyy", "bb": "1,000"}]).splitlines()
    assert lines == ["| a   |    bb |", "| --- | ----: |", "| x   |     1 |", "| yyy | 1,000 |"]
