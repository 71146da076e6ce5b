# Overlay for CoFrGeNet-A and the full CoFrGeNet: CAttnU instead of CAttnM. The paper reports CAttnM because
# it "led to slightly better results" and gives no numbers for CAttnU.
#   python train.py config/cofrgenet_a.py config/ablate/cattn_u.py --out_dir=out/cattn_u
# Departures from print: the triangles are lower ones, because a product of the printed upper ones with a
# column sees the future only, and the text asks for the past. Evaluation clips z; print clips a_0 + z:
# --cf_clip_of=ladder. Print gives no start: here w_0 = 1, and M is the mean of the past and noise.
# Table 1 counts l (2 d + l + 1) parameters per layer. This model has 2 l more, because d does not count w_0
# (config/ablate/depth_with_w0.py does), and 2 l (d + 1) intercepts.
attention = "cattn_u"
