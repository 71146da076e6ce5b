# The CoFrGeNet papers as printed, on top of a model of theirs: the clamp at 0.01, equation 9 for its
# gradient, outputs clipped in evaluation to their ranges in training, tokens that attend to those before
# them alone, N(0, 0.02) and weight decay as nanoGPT has them for all weights. Intercepts start where they
# did.
#   python train.py config/cofrgenet.py config/ablate/as_printed.py --out_dir=out/as_printed
cf_pole = "clamp"
cf_eps = 0.01
cf_init = "nanogpt"
cf_eval_clip = True
cattn_strict = True
decay_ladders = True
