# The ICLR version's Cffn (its section 4.1.2), the product of two ensembles of depths d and d + 1, on top
# of CoFrGeNet-F or the whole CoFrGeNet. That version's Table 1, 2 L p (d + 1), leaves out the collapsed
# p x p maps: this is 2 p^2 + L p more a layer, and intercepts.
#   python train.py config/cofrgenet_f.py config/ablate/iclr.py --out_dir=out/iclr_f
ffn = "cffn_product"
