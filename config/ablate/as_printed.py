# Overlay for the CoFrGeNet papers' models: as printed. The clamp at 0.01 with equation 9 as its gradient;
# in evaluation, ladders clipped to their ranges in training; tokens attend to earlier tokens only;
# N(0, 0.02) and weight decay for all weights, as in nanoGPT, but for CAttnU: its w_0 begin at 1, its M
# as the mean of the past, and w_0 do not decay. Print does not say where the intercepts start: they keep
# the start of the model below. The papers' Llamas have Adam: add --weight_decay=0 (betas stay ours).
# With CAttnU or scores of rank L add --cf_clip_of=ladder: print clips a_0 + z, which the collapsed form of
# its section 4.2 does not have.
#   python train.py config/cofrgenet.py config/ablate/as_printed.py --out_dir=out/as_printed
cf_pole = "clamp"
cf_eps = 0.01
cf_init = "nanogpt"
cf_eval_clip = True
cattn_strict = True
decay_ladders = True
