# Overlay, ExPE paper, Table 2, "ExPE (l = 1)": a single column.
# Published: loss 4.48 at 512 tokens, 4.83 at 1024, 6.01 at 2048.
#   python train.py config/paper/expe/35m_expe.py config/ablate/expe_one.py --out_dir=out/expe_one
expe_width = 1
