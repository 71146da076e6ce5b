# The paper's CoFrGeNet_B: d divisions one after the other instead of one.
#   python train.py config/paper/cofrgenet_f.py config/ablate/ladder_form.py --out_dir=out/f_ladder_form
cf_impl = "ladder"
