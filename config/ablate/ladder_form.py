# Overlay for any CoFrGeNet: the paper's CoFrGeNet_B (Table 4 gives its times), which computes d divisions
# one after the other instead of one. In the paper it is the full model.
#   python train.py config/cofrgenet.py config/ablate/ladder_form.py --out_dir=out/cofrgenet_b
cf_impl = "ladder"
