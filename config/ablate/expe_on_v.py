# Overlay: ExPE before W_v too. The ExPE paper calls it optional (section 2.1) and has it in none of its
# tables.
#   python train.py config/paper/expe/35m_expe.py config/ablate/expe_on_v.py --out_dir=out/expe_on_v
expe_on_v = True
