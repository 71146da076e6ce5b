"""Which model a table marks as the best, and what it says where none can be."""

from evaluation import report


def measured(perplexity, bits_per_byte, **more):
    result = {"loss": 1.0, "perplexity": perplexity, "bits_per_byte": bits_per_byte, "tokens": 9}
    return result | {"bytes": 77, "window": 8, "stride": 4} | more


def bold(said):
    return [part for number, part in enumerate(said.split("**")) if number % 2]


def test_perplexities_of_different_tokenizers_are_not_ranked():
    results = {"bytes": {"a": measured(23.3, 4.54)}, "bpe": {"a": measured(751.0, 4.21)}}
    assert bold(report.perplexity(results, papers=False)) == ["23.30"]
    for papers in (False, True):
        said = report.perplexity(results, papers, tokenizers="bytes: x; bpe: y")
        assert bold(said) == ["4.2100"]
        assert "in bits per byte, because their tokenizers differ (bytes: x; bpe: y)" in said
        assert "23.30" in said
        assert "751.00" in said
        assert said.count("|           77 |") == 2
    results = {model: {"ptb": texts["a"]} for model, texts in results.items()}
    said = report.perplexity(results, papers=True, tokenizers="bytes: x; bpe: y")
    assert bold(said) == ["4.2100"]
    assert "published: GPT2-xl (1.5B), OWT" in said


def test_bits_per_byte_without_the_text_that_a_tokenizer_does_not_know_are_marked():
    results = {"a": {"x": measured(23.3, 4.5, unknown_tokens=3), "y": measured(9.0, 4.0)}}
    said = report.perplexity(results | {"b": {"x": measured(9.0, 4.0, unknown_tokens=0)}}, papers=False)
    assert "does not know: a, x: 33.3% (3 tokens). Bits per byte" in said
    assert "b, x" not in said
    del results["a"]["x"]
    assert "know" not in report.perplexity(results, papers=False)


def test_perplexities_per_word_are_ranked_whatever_the_tokenizer():
    results = {"bytes": {"a": measured(23.3, 4.54, words=3)}, "bpe": {"a": measured(751.0, 4.21, words=3)}}
    said = report.perplexity(results, papers=False, tokenizers="bytes: x; bpe: y")
    assert bold(said) == ["23.30"]
    assert "tokenizers" not in said


def extrapolated(train_length, loss):
    lengths = [{"factor": k, "loss": loss, "last": loss, "last_at_train_length": loss} for k in (1, 2)]
    return {"lengths": lengths, "refused": {}, "train_length": train_length, "tokens": 8, "documents": 1}


def test_lengths_are_ranked_on_the_same_tokens_only():
    results = {"a": extrapolated(32, 1.0), "b": extrapolated(32, 2.0)}
    assert bold(report.extrapolation(results, papers=False)) == ["1.000"] * 6
    said = report.extrapolation(results, papers=False, tokenizers="a: x; b: y")
    assert bold(said) == []
    assert "the best, because their tokenizers differ (a: x; b: y)" in said
    said = report.extrapolation(results | {"c": extrapolated(48, 2.0)}, papers=False)
    assert bold(said) == []
    assert "trained on windows of 32 and 48 tokens" in said


def test_a_model_that_diverged_is_not_the_best():
    rows = {"nan": {"loss": float("nan")}, "a": {"loss": 3.0}, "b": {"loss": 4.0}}
    assert bold(report.comparison(rows, ["loss"], ".2f")) == ["3.00"]


def test_scores_of_tasks_with_their_standard_errors():
    """Also of filtered texts, and only where the harness gives a number."""
    exact = {"exact_match,first": 0.5, "exact_match_stderr,first": 0.0312}
    one = {"task": {"acc": 0.25, "acc_stderr": 0.0456, **exact}}
    other = {"task": {"acc": 0.75, "acc_stderr": float("nan"), **exact}}
    said = report.zero_shot({"one": one, "other": other}, papers=False)
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in said.splitlines()[2:4]]
    assert rows == [
        ["one", "0.250 ± 0.046", "**0.500** ± 0.031"],
        ["other", "**0.750**", "**0.500** ± 0.031"],
    ]
    assert said.endswith("± one standard error, as lm-evaluation-harness gives it")
    assert "±" not in report.zero_shot({"one": {"task": {"acc": 0.25}}}, papers=False)
