# The product of two linear maps: cffn_product and cffn_added without their fractions.
#   python train.py config/study/base.py config/study/cffn_product_control.py --out_dir=out/arm
ffn = "cffn_product"
cf_control = True
