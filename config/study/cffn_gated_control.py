# The gated Cffn without fractions: one linear map and no nonlinearity.
#   python train.py config/study/base.py config/study/cffn_gated_control.py --out_dir=out/arm
ffn = "cffn_gated"
cf_control = True
