# ExPE paper's ablation (Table 2): in the embedding once, not before each W_q and W_k.
#   python train.py config/paper/expe/35m_expe.py config/ablate/expe_once.py --out_dir=out/expe_once
expe_once = True
