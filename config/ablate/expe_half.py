# ExPE paper, Table 4, "ExPE M scaled by 0.5": the l columns are halved in evaluations and samples, not in
# training. A run that was trained without goes on with --resume=True --expe_inference_scale=0.5 and a step
# more of --max_iters.
#   python train.py config/paper/expe/medium_expe.py config/ablate/expe_half.py --out_dir=out/expe_half
expe_inference_scale = 0.5
