# CAttnU in the place of CAttnM, which the paper reports as it "led to slightly better results"; no numbers.
# On top of CoFrGeNet-A or the whole CoFrGeNet.
#   python train.py config/cofrgenet_a.py config/ablate/cattn_u.py --out_dir=out/cattn_u
attention = "cattn_u"
