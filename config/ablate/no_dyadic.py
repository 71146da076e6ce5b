# The paper's ablation of its schedule (Table 5, right numbers): every depth trains from the start.
# On top of any CoFrGeNet.
#   python train.py config/cofrgenet_f.py config/ablate/no_dyadic.py --out_dir=out/f_no_dyadic
dyadic = False
