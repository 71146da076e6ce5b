# ExPE paper's ablation (Table 2): S and theta are learned from a random start.
#   python train.py config/paper/expe/35m_expe.py config/ablate/expe_learned.py --out_dir=out/expe_learned
expe_learned = "random"
