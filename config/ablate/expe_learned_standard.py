# Overlay, ExPE paper, Table 2, "ExPE (learned initialized)": S and theta are learned from their standard
# values.
# One S and theta serve all blocks: the paper does not say it.
# Published: loss 3.88 at 512 tokens, 3.82 at 1024, 4.89 at 2048.
#   python train.py config/paper/expe/35m_expe.py config/ablate/expe_learned_standard.py \
#     --out_dir=out/expe_learned_standard
expe_learned = "standard"
