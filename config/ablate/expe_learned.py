# Overlay, ExPE paper, Table 2, "ExPE (learned)": S and theta are learned from a random start.
# The start is N(0, 0.02), and one S and theta serve all blocks: the paper says neither.
# Published: loss 7.33 at 512 tokens, 7.34 at 1024, 7.61 at 2048.
#   python train.py config/paper/expe/35m_expe.py config/ablate/expe_learned.py --out_dir=out/expe_learned
expe_learned = "random"
