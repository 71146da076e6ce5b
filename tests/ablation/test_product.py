"""What --vary accepts and refuses."""

import pytest

from ablation.product import Choice, parse_axis, product
from configurator import ConfigError


def test_parse_axis():
    assert parse_axis("cf-depth=1,3") == [Choice([], {"cf_depth": "1"}), Choice([], {"cf_depth": "3"})]
    assert parse_axis("a=1,2 b=3,4") == [Choice([], {"a": "1", "b": "3"}), Choice([], {"a": "2", "b": "4"})]
    assert parse_axis("dataset=x:1,y:2;z") == [
        Choice([], {"dataset": "x:1,y:2"}),
        Choice([], {"dataset": "z"}),
    ]
    assert parse_axis("none,a.py+b.py") == [Choice([], {}), Choice(["a.py", "b.py"], {})]
    for text, complaint in {
        "": "is empty",
        "cf_depth": "neither KEY=VALUE",
        "a=1,,2": "empty value",
        "a=1,1": "is given twice",
        "a=1,1 b=2,2": "1 2 is given twice",
        "a.py,a.py": "is given twice",
        "a=1,2 b=3": "2 of a, 1 of b",
        "a=1 b": "write KEY=VALUE",
    }.items():
        with pytest.raises(ValueError, match=complaint):
            parse_axis(text)


def test_a_stack_without_a_file():
    with pytest.raises(ConfigError, match=r"missing beside a \+"):
        product(["a.py+"], [], None, [], lambda arguments: None)
