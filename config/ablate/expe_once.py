# Overlay, ExPE paper, Table 2, "ExPE (once)": the l columns are set in the embedding, not before each W_q
# and W_k.
# Published: loss 4.43 at 512 tokens, 4.82 at 1024, 6.18 at 2048.
#   python train.py config/paper/expe/35m_expe.py config/ablate/expe_once.py --out_dir=out/expe_once
expe_once = True
