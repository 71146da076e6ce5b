# Overlay for CoFrGeNet-A and the full CoFrGeNet: CAttnU instead of CAttnM. The paper reports CAttnM because
# it "led to slightly better results" and gives no numbers for CAttnU.
#   python train.py config/cofrgenet_a.py config/ablate/cattn_u.py --out_dir=out/cattn_u
attention = "cattn_u"
