# ExPE paper's ablation (Table 2): the same number in all l columns.
#   python train.py config/paper/expe/35m_expe.py config/ablate/expe_stable.py --out_dir=out/expe_stable
expe_stable = True
