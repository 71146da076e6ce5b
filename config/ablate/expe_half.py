# Overlay, ExPE paper, Table 4, "ExPE M scaled by 0.5": the l columns are halved in evaluation and sampling,
# not in training. To apply it to a finished run, resume the run with --resume=True
# --expe_inference_scale=0.5 and one more step in --max_iters.
#   python train.py config/paper/expe/medium_expe.py config/ablate/expe_half.py --out_dir=out/expe_half
expe_inference_scale = 0.5
