"""What kinds of models share: their keys, the head's loss and generation, the registry; and SAFFU."""
