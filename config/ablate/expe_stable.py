# Overlay, ExPE paper, Table 2, "ExPE (p is stable)": the same number in all l columns.
# Published: loss 4.26 at 512 tokens, 4.21 at 1024, 4.24 at 2048.
#   python train.py config/paper/expe/35m_expe.py config/ablate/expe_stable.py --out_dir=out/expe_stable
expe_stable = True
