# ExPE paper's ablation (Table 2): before W_v too.
#   python train.py config/paper/expe/35m_expe.py config/ablate/expe_on_v.py --out_dir=out/expe_on_v
expe_on_v = True
