# The paper's CoFrGeNet_B (Table 4: its times): d divisions one after the other instead of one. There it is
# the model with both layers replaced; on top of any CoFrGeNet.
#   python train.py config/cofrgenet.py config/ablate/ladder_form.py --out_dir=out/cofrgenet_b
cf_impl = "ladder"
