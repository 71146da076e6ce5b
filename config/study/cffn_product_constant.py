# The product Cffn with constants for its fractions.
#   python train.py config/study/base.py config/study/cffn_product_constant.py --out_dir=out/arm
ffn = "cffn_product"
cf_control = True
cf_control_constant = True
