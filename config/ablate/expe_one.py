# ExPE paper's ablation (Table 2): l = 1, a single column.
#   python train.py config/paper/expe/35m_expe.py config/ablate/expe_one.py --out_dir=out/expe_one
expe_width = 1
