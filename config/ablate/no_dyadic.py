# Overlay for any CoFrGeNet: the paper's ablation of its schedule (Table 5, right numbers). All depths train
# from the start.
#   python train.py config/cofrgenet_f.py config/ablate/no_dyadic.py --out_dir=out/f_no_dyadic
dyadic = False
