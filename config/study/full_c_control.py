# Both of full_c without fractions.
#   python train.py config/study/base.py config/study/full_c_control.py --out_dir=out/arm
attention = "cattn_c"
cattn_heads = 16
ffn = "cffn_added"
cf_control = True
