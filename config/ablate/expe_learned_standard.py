# ExPE paper's ablation (Table 2): S and theta are learned from their standard values.
#   python train.py config/paper/expe/35m_expe.py config/ablate/expe_learned_standard.py --out_dir=out/expe
expe_learned = "standard"
