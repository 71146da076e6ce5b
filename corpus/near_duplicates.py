"""Finds texts that repeat, in large part, what earlier texts said.

A text is cut into windows of WINDOW words (letters and digits; case and blanks do not matter). One in
EVERY of all windows is sampled, by its hash, so that the same windows are sampled in every text (Broder,
1997, On the resemblance and containment of documents). A text is a near-duplicate if more than a given
share of its sampled windows stand in earlier texts that were kept.
"""

import hashlib
import re

import numpy as np

WINDOW = 8
EVERY = 8
LEAST = 4  # sampled windows: of fewer, a share says little, and only a text that is the same is dropped
MULTIPLIERS = np.array(
    [pow(0x9E3779B97F4A7C15, WINDOW - i, 1 << 64) for i in range(WINDOW)], dtype=np.uint64
)


class NearDuplicates:
    """share: texts of which more than this share was seen are near-duplicates."""

    def __init__(self, share: float = 0.5):
        self.share = share
        self._words: dict[str, int] = {}
        self._seen: set[int] = set()

    def add(self, text: str) -> bool:
        """Whether the text is new. If so, it counts as an earlier text from now on."""
        words = re.findall(r"\w+", text.lower())
        windows = self._sample(words)
        if len(windows) < LEAST:
            windows = [_hash(" ".join(words))]
        known = sum(window in self._seen for window in windows)
        if known > self.share * len(windows):
            return False
        self._seen.update(windows)
        return True

    def _sample(self, words: list[str]) -> list[int]:
        if len(words) < WINDOW:
            return []
        table = self._words
        for word in words:
            if word not in table:
                table[word] = _hash(word)
        hashes = np.fromiter((table[word] for word in words), np.uint64, len(words))
        count = len(words) - WINDOW + 1
        windows = np.zeros(count, np.uint64)
        for i, multiplier in enumerate(MULTIPLIERS):
            windows += hashes[i : i + count] * multiplier  # modulo 2^64
        windows ^= windows >> np.uint64(29)
        return np.unique(windows[windows % np.uint64(EVERY) == 0]).tolist()


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(errors="replace"), digest_size=8).digest(), "little")
