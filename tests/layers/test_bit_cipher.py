"""The bit-cipher against the printed orders, and the embeddings against numbers computed by hand."""

import pytest
import torch

from layers.bit_cipher import bit_vectors, distributions, embeddings, vectors_of

ORDERS = {
    1: "1",
    3: "100 010 001 011 101 110 111",
    4: "1000 0100 0010 0001 0011 0101 1001 0110 1010 1100 1101 1011 0111 1110 1111",
}


def text(vectors):
    return " ".join("".join(map(str, row)) for row in vectors.tolist())


@pytest.mark.parametrize("width", ORDERS)
def test_the_order_is_the_printed_one(width):
    assert text(bit_vectors(2**width - 1, width)) == ORDERS[width]


@pytest.mark.parametrize("width", range(1, 11))
def test_all_vectors_come_out_once_with_rising_norms(width):
    vectors = bit_vectors(2**width - 1, width)
    assert len(vectors.unique(dim=0)) == 2**width - 1
    norms = vectors.sum(1)
    assert (norms[1:] >= norms[:-1]).all()
    assert norms.min() == 1


def test_few_of_many_have_few_ones():
    norms = bit_vectors(2848, 32).sum(1)
    assert norms.unique(return_counts=True)[1].tolist() == [32, 496, 2320]
    with pytest.raises(ValueError, match=r"7 bit-vectors of width 3.* 8"):
        bit_vectors(8, 3)


def test_frequent_tokens_come_first_and_of_equal_ones_the_smaller_id():
    assert text(vectors_of(torch.tensor([2, 5, 0, 5]), 3)) == "001 100 011 010"
    rows = distributions(torch.tensor([2, 5, 0, 5]), 3)
    assert rows[2].tolist() == [0, 0.5, 0.5]
    assert rows.sum(1).tolist() == [1] * 4


def test_embeddings_of_an_example():
    expected = """.9109375 .0421875 .046875 .0479167 .8895833 .0625 .071875 .084375 .84375
        .0958333 .4458333 .4583333 .4291667 .1125 .4583333 .39375 .41875 .1875"""
    expected = torch.tensor([float(number) for number in expected.split()], dtype=torch.float64)
    found = embeddings(torch.tensor([7, 5, 3, 2, 2, 1]), 3)
    torch.testing.assert_close(found, expected.view(6, 3), atol=1e-7, rtol=0)
    assert (found > 0).all()
    # a token that never occurs has the noise alone
    never = embeddings(torch.tensor([7, 5, 0]), 3)
    torch.testing.assert_close(never.sum(1), torch.ones(3, dtype=torch.float64))
    assert (never > 0).all()
