# The paper's ablation of its schedule (Table 5): every depth trains from the start.
#   python train.py config/paper/cofrgenet_f.py config/ablate/no_dyadic.py --out_dir=out/f_no_dyadic
dyadic = False
