use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::binding::ArrayType;

fn shape(dims: &[usize]) -> TensorShape {
    TensorShape { item_bytes: 4, dims: dims.to_vec(), bytes: 4 * dims.iter().product::<usize>() }
}

fn spec(name: &str, is_input: bool, variants: &[Vec<usize>]) -> BindingSpec {
    let variants: Vec<_> = variants.iter().map(|dims| shape(dims)).collect();
    BindingSpec {
        name: name.to_owned(),
        is_input,
        dtype: Some(ArrayType::Float32),
        is_partial: false,
        is_visible: true,
        retained: None,
        block_columns: None,
        largest: variants.iter().max_by_key(|shape| shape.bytes).unwrap().clone(),
        variants,
    }
}

/// Two inputs and an output, with these dims in each combination.
fn specs(variants: &[[Vec<usize>; 3]]) -> BindingSpecs {
    let of = |position: usize| variants.iter().map(|dims| dims[position].clone()).collect::<Vec<_>>();
    let list = vec![spec("a", true, &of(0)), spec("b", true, &of(1)), spec("out", false, &of(2))];
    BindingSpecs::of_list(list, 2, variants.len() > 1)
}

fn given(dims: &[usize]) -> GivenShape {
    GivenShape { item_bytes: 4, dims: dims.iter().map(|&dim| dim as u64).collect() }
}

fn dims() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(1_usize..4, 0..3)
}

fn variants() -> impl Strategy<Value = Vec<[Vec<usize>; 3]>> {
    prop::collection::vec([dims(), dims(), dims()], 1..5)
}

/// A scalar is one dim of 1.
fn normal(dims: &[usize]) -> Vec<usize> {
    if dims.is_empty() { vec![1] } else { dims.to_vec() }
}

/// Returns true if the given dims at a position match those of a combination.
type Fits<'a> = &'a dyn Fn(usize, &[usize], &[usize]) -> bool;

proptest! {
    #[test]
    fn variant_of_given_shapes_is_the_first_that_has_them(
        variants in variants(),
        drawn in prop::collection::vec((0_usize..5, any::<bool>()), 3),
        is_partial: bool,
    ) {
        let mut specs = specs(&variants);
        specs.list[0].is_partial = is_partial;
        // Each tensor has the shape of a combination, or is omitted.
        let shapes: Vec<Option<Vec<usize>>> = drawn
            .iter()
            .enumerate()
            .map(|(position, &(variant, is_given))| {
                is_given.then(|| variants[variant % variants.len()][position].clone())
            })
            .collect();
        let size = |dims: &[usize]| dims.iter().product::<usize>();
        let all = |fits: Fits<'_>| {
            variants.iter().position(|tensors| {
                (0..3).all(|at| shapes[at].as_ref().is_none_or(|dims| fits(at, dims, &tensors[at])))
            })
        };
        let expected = all(&|_, found, dims| normal(found) == normal(dims)).or_else(|| {
            all(&|at, found, dims| {
                normal(found) == normal(dims)
                    || (at == 0 && is_partial)
                    || (at == 2 && variants.len() > 1 && size(found) >= size(dims))
            })
        });
        let asked: Vec<_> = shapes.iter().map(|dims| dims.as_ref().map(|dims| given(dims))).collect();
        match (specs.variant_of(&asked), expected) {
            (Ok(found), Some(expected)) => prop_assert_eq!(found, expected),
            (Err(error), None) => {
                prop_assert_eq!(error.allowed.len(), variants.len());
                prop_assert_eq!(error.passed.len(), shapes.iter().flatten().count());
                let text = error.to_string();
                prop_assert!(text.starts_with("No matching dimension found: passed: "));
                prop_assert_eq!(text.matches("; allowed ").count(), variants.len().min(4));
            }
            other => prop_assert!(false, "{other:?}"),
        }
    }

    #[test]
    fn shapes_of_sizes_are_those_of_the_variant_that_fits_best(
        variants in variants(),
        drawn in prop::collection::vec(prop::option::of((0_usize..5, 0_usize..2)), 3),
        is_partial: bool,
    ) {
        let mut specs = specs(&variants);
        specs.list[0].is_partial = is_partial;
        // Each buffer has the size of a combination or one element more, or is omitted.
        let size = |dims: &[usize]| shape(dims).bytes;
        let sizes: Vec<_> = drawn
            .iter()
            .enumerate()
            .map(|(at, drawn)| drawn.map_or(0, |(variant, more)| size(&variants[variant % variants.len()][at]) + 4 * more))
            .collect();
        let given_places: Vec<_> = (0..3).filter(|&at| drawn[at].is_some()).collect();
        let spare = |variant: usize, at: usize| sizes[at].checked_sub(size(&variants[variant][at]));
        // Only outputs may have spare room; a combination without spare room is best.
        let best = (0..variants.len())
            .filter(|&variant| given_places.iter().all(|&at| spare(variant, at).is_some_and(|bytes| at == 2 || bytes == 0)))
            .min_by_key(|&variant| (given_places.iter().any(|&at| spare(variant, at) != Some(0)), variant));
        let expected: Vec<_> = (0..3)
            .map(|at| {
                drawn[at].map(|_| match best {
                    Some(variant) => given(&variants[variant][at]),
                    None if sizes[at] == specs.list[at].largest.bytes => GivenShape::from(&specs.list[at].largest),
                    None => given(&[sizes[at] / 4]),
                })
            })
            .collect();
        let mut shapes = vec![Some(given(&[7])); 3];
        let found = specs.shapes_of_sizes(&sizes, &mut shapes).ok();
        prop_assert_eq!(&shapes, &expected);
        prop_assert_eq!(found, best.or_else(|| specs.variant_of(&expected).ok()));
    }

    #[test]
    fn shape_of_a_buffer_is_the_only_one_of_its_size_or_the_largest(variants in variants(), drawn in 0_usize..5) {
        // A buffer of an empty tensor does not differ from an omitted one.
        let variants = [variants, vec![[vec![0], vec![0], vec![0]]]].concat();
        let specs = specs(&variants);
        for (index, spec) in specs.iter().enumerate() {
            let size = spec.shape(drawn % variants.len()).bytes;
            let dims: Vec<_> = variants.iter().map(|tensors| &tensors[index]).collect();
            let of_size: Vec<_> = dims.iter().filter(|dims| shape(dims).bytes == size).collect();
            let is_unique = of_size.iter().all(|dims| *dims == of_size[0]);
            let said = specs.shape_of_buffer(index, BufferFacts { len: size, is_readonly: false, is_whole_dma_buffer: false });
            if size == spec.largest.bytes {
                prop_assert_eq!(said, Some(GivenShape::from(&spec.largest)));
            } else {
                prop_assert_eq!(said, (is_unique && size > 0).then(|| given(of_size[0])));
            }
        }
    }

    #[test]
    fn input_takes_its_own_shape_and_partly_given_rows(
        own in dims(),
        found in dims(),
        is_partial: bool,
        is_readonly: bool,
    ) {
        let mut spec = spec("a", true, std::slice::from_ref(&own));
        spec.is_partial = is_partial;
        let (found, strides) = (signed(&found), dense(&found));
        let argument = array(&found, &strides, is_readonly);
        let is_short = found.len() == 1 && shape_bytes(&found) <= spec.largest.bytes;
        prop_assert_eq!(spec.takes(0, &argument), found == signed(&own) || (is_partial && is_short));
    }

    #[test]
    fn output_goes_into_its_own_shape_and_into_larger_ones(
        variants in prop::collection::vec(dims(), 1..4),
        found in dims(),
        drawn in 0_usize..4,
        is_readonly: bool,
    ) {
        let spec = spec("out", false, &variants);
        let variant = drawn % variants.len();
        let (found, strides) = (signed(&found), dense(&found));
        let is_known = variants.iter().any(|dims| signed(dims) == found);
        let is_larger = shape_bytes(&found) > spec.shape(variant).bytes;
        let expected = !is_readonly && (found == signed(&variants[variant]) || (is_known && is_larger));
        prop_assert_eq!(spec.fits_into(variant, &array(&found, &strides, is_readonly)), expected);
    }

    #[test]
    fn window_lies_in_its_tensor(
        dims in prop::collection::vec((1_u8..5, 0_u8..5, 0_i8..5), 1..4),
        symbolic in any::<bool>(),
    ) {
        let tensor: Vec<_> = dims.iter().map(|dim| usize::from(dim.0)).collect();
        let mut own = spec("state", true, &[tensor]);
        own.retained = Some(0);
        let specs = Arc::new(BindingSpecs::of_list(vec![own], 1, false));
        let starts: Vec<_> = dims
            .iter()
            .enumerate()
            .map(|(index, dim)| if symbolic { format!("\"s{index}\"") } else { dim.1.to_string() })
            .map(|start| format!("{{\"start\": {start}}}"))
            .collect();
        let json = format!(
            "{{\"BufferSpecs\": [{{\"Name\": \"st.*\", \"ElemSize\": 4, \"DimSpecs\": [{}]}}]}}",
            starts.join(",")
        );
        let spec = slicing(&specs, &json).unwrap();
        prop_assert!(spec.cuts(0) && !spec.cuts(1));
        let extent: Vec<_> = dims.iter().map(|dim| isize::from(dim.2)).collect();
        let strides = vec![0; extent.len()];
        let parameters: Vec<_> = dims.iter().enumerate().map(|(index, dim)| (format!("s{index}"), i64::from(dim.1))).collect();
        let found = spec.origin(0, &array(&extent, &strides, true), &parameters);
        let lies_in = dims.iter().all(|(dim, at, extent)| i16::from(*at) + i16::from(*extent) <= i16::from(*dim));
        prop_assert_eq!(found.is_ok(), lies_in, "{:?}", found);
        if let Ok(origin) = found {
            prop_assert_eq!(origin, dims.iter().map(|dim| usize::from(dim.1)).collect::<Vec<_>>());
        }
    }

    #[test]
    fn parts_of_a_state_lie_side_by_side(own in prop::collection::vec(1_usize..70, 1..4), blocks: bool) {
        let mut state = spec("past", true, std::slice::from_ref(&own));
        state.retained = Some(0);
        state.block_columns = blocks.then(|| own[own.len() - 1]);
        let specs = BindingSpecs::of_list(vec![state], 1, false);
        let whole = specs.state_part("past", None).unwrap();
        prop_assert_eq!((&whole.dims, whole.device_offset), (&own, 0));
        // A block of 32 numbers of a row has 33 bytes.
        let columns = own[own.len() - 1];
        let row_bytes = if blocks { columns.div_ceil(32) * 33 } else { 4 * columns };
        prop_assert_eq!(whole.device_bytes, own.iter().product::<usize>() / columns * row_bytes);
        if blocks && own.len() == 1 {
            prop_assert!(specs.state_part("past", Some(0)).is_err());
            return Ok(());
        }
        let mut end = 0;
        for sequence in 0..own[0] {
            let part = specs.state_part("past", Some(sequence)).unwrap();
            prop_assert_eq!(&part.dims, &own[1..]);
            prop_assert_eq!(part.device_offset, end);
            prop_assert_eq!(part.array_bytes * own[0], whole.array_bytes);
            end += part.device_bytes;
        }
        prop_assert_eq!(end, whole.device_bytes);
        prop_assert_eq!(specs.state_part("past", Some(own[0])).unwrap_err().code(), "state.sequence");
    }

    #[test]
    fn slicing_spec_of_any_text_never_panics(json in ".{0,60}") {
        let _ = slicing(&Arc::new(specs(&[[vec![1], vec![1], vec![1]]])), &json);
    }
}

fn signed(dims: &[usize]) -> Vec<isize> {
    dims.iter().map(|&dim| isize::try_from(dim).unwrap()).collect()
}

fn shape_bytes(dims: &[isize]) -> usize {
    4 * usize::try_from(dims.iter().product::<isize>()).unwrap()
}

fn dense(dims: &[usize]) -> Vec<isize> {
    let mut step = 4;
    let mut strides = vec![0; dims.len()];
    for (stride, &dim) in strides.iter_mut().zip(dims).rev() {
        *stride = step;
        step *= isize::try_from(dim).unwrap();
    }
    strides
}

fn array<'a>(shape: &'a [isize], strides: &'a [isize], is_readonly: bool) -> Argument<'a> {
    Argument { format: b"f", item_bytes: 4, shape, strides, address: 64, is_readonly }
}

/// A specification whose patterns are prefixes followed by `.*`.
fn slicing(specs: &Arc<BindingSpecs>, json: &str) -> Result<SlicingSpec, SlicingError<()>> {
    SlicingSpec::new(specs, json, |pattern| {
        let prefix = pattern.strip_suffix(".*").map(str::to_owned);
        let prefix = prefix.ok_or_else(|| format!("{pattern} is no pattern"));
        Ok(prefix.map(|prefix| move |name: &str| Ok(name.starts_with(&prefix))))
    })
}

#[test]
fn buffer_of_a_size_that_no_shape_has_is_refused_where_it_came_without_shape() {
    let specs = specs(&[
        [vec![8, 4], vec![1], vec![8, 4]],
        [vec![3, 4], vec![1], vec![3, 4]],
        [vec![1, 4], vec![1], vec![1, 4]],
    ]);
    let buffer = |len| BufferFacts { len, is_readonly: false, is_whole_dma_buffer: false };
    let check = |len, dims: Option<&[usize]>| {
        specs.list[0].check_buffer(buffer(len), dims.map(given).as_ref()).map_err(|error| error.code())
    };
    for (len, dims, expected) in [
        (128, None, Ok(())),
        (48, None, Ok(())),
        (32, None, Err("input.size")),
        (144, None, Err("input.size")),
        (32, Some(&[2, 4][..]), Ok(())),
        (144, Some(&[9, 4]), Err("input.size")),
        (48, Some(&[2, 4]), Err("call.argument")),
    ] {
        assert_eq!(check(len, dims), expected, "{len} bytes with {dims:?}");
    }
    let huge = GivenShape { item_bytes: u64::MAX, dims: vec![u64::MAX, 2] };
    assert_eq!(specs.list[0].check_buffer(buffer(4), Some(&huge)).unwrap_err().code(), "call.argument");
    // A binding with one shape needs its exact size, unless it is partial.
    let mut single = spec("a", true, &[vec![8, 4]]);
    assert_eq!(single.check_buffer(buffer(48), Some(&given(&[3, 4]))).unwrap_err().code(), "input.size");
    single.is_partial = true;
    single.check_buffer(buffer(48), None).unwrap();
}

#[test]
fn whole_dma_buffer_stands_for_its_tensor() {
    let specs = specs(&[[vec![8, 4], vec![1], vec![8, 4]], [vec![3, 4], vec![1], vec![3, 4]]]);
    let buffer = BufferFacts { len: 4096, is_readonly: false, is_whole_dma_buffer: true };
    specs.list[0].check_buffer(buffer, None).unwrap();
    specs.list[0].check_buffer(buffer, Some(&given(&[3, 4]))).unwrap();
    assert_eq!(specs.list[0].tensor_bytes(buffer), 128);
    assert_eq!(specs.list[0].check_buffer(buffer, Some(&given(&[9, 4]))).unwrap_err().code(), "input.size");
}

#[test]
fn output_in_read_only_memory_is_refused() {
    let specs = specs(&[[vec![1], vec![1], vec![1]]]);
    let buffer = BufferFacts { len: 4, is_readonly: true, is_whole_dma_buffer: false };
    specs.list[0].check_buffer(buffer, None).unwrap();
    let refused = specs.list[2].check_buffer(buffer, None).unwrap_err().to_string();
    assert_eq!(refused, "output `out` was given read-only memory; a writable array is expected");
}

#[test]
fn shapes_with_other_elements_match_nothing_and_say_so() {
    let specs = specs(&[[vec![2], vec![1], vec![2]]]);
    let other = GivenShape { item_bytes: 2, dims: vec![2] };
    let error = specs.variant_of(&[Some(other), None, Some(given(&[2]))]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "No matching dimension found: passed: a [2] with elements of 2 bytes instead of 4, out [2]; \
         allowed 0: a [2], out [2]"
    );
}

#[test]
fn most_similar_of_many_shapes_are_shown() {
    let sizes: Vec<_> = (1..=8192).map(|size| [vec![size, 3], vec![1], vec![1]]).collect();
    let asked =
        |rows| specs(&sizes).variant_of(&[Some(given(&[rows, 2])), None, None]).unwrap_err().to_string();
    assert_eq!(
        asked(50),
        "No matching dimension found: passed: a [50, 2]; allowed 47: a [48, 3]; allowed 48: a [49, 3]; allowed 49: a \
         [50, 3]; allowed 50: a [51, 3]; and 8188 more"
    );
    assert!(asked(9000).ends_with("allowed 8191: a [8192, 3]; and 8188 more"));
}

#[test]
fn unknown_name_is_refused_with_the_known_names() {
    let mut specs = specs(&[[vec![2], vec![1], vec![2]]]);
    specs.list[1].retained = Some(1);
    specs.check_output_name("out").unwrap();
    assert_eq!(
        specs.check_output_name("a").unwrap_err().to_string(),
        "output `a` does not exist; the program has [\"out\"]"
    );
    assert_eq!(
        specs.missing_inputs(|_| false).to_string(),
        "missing inputs: a; the program needs [\"a\", \"b\"]"
    );
    assert_eq!(
        specs.state_part("a", None).unwrap_err().to_string(),
        "state \"a\" does not exist; the device keeps [\"b\"] of the inputs [\"a\", \"b\"]"
    );
    assert!(specs.has_state());
    specs.check_activations(1).unwrap();
    assert_eq!(specs.check_activations(2).unwrap_err().code(), "option.state_per_activation");
    specs.list[2].is_visible = false;
    assert_eq!(specs.check_output_name("out").unwrap_err().code(), "output.unknown_name");
    for index in [-1, 3, i64::MAX, i64::MIN] {
        assert_eq!(specs.position(index).unwrap_err().code(), "call.argument");
    }
    assert_eq!(specs.position(2).unwrap(), 2);
}

#[test]
fn wrong_slicing_spec_is_refused_with_its_place() {
    let specs = Arc::new(specs(&[[vec![2], vec![1], vec![2]]]));
    for (json, expected) in [
        ("[", "not JSON"),
        ("{}", "a list \"BufferSpecs\" is expected"),
        ("{\"BufferSpecs\": [{}]}", "BufferSpecs[0]: a string \"Name\" is expected"),
        ("{\"BufferSpecs\": [{\"Name\": \"a\"}]}", "BufferSpecs[0]: a number \"ElemSize\" is expected"),
        (
            "{\"BufferSpecs\": [{\"Name\": \"a\", \"ElemSize\": 4, \"DimSpecs\": [{\"start\": -1}]}]}",
            "BufferSpecs[0]: DimSpecs[0]: \"start\" is -1; a number of at least 0 or a symbol is expected",
        ),
        ("{\"BufferSpecs\": [{\"Name\": \"a\", \"ElemSize\": 4, \"DimSpecs\": []}]}", "a is no pattern"),
    ] {
        let Err(SlicingError::Spec(found)) = slicing(&specs, json) else { panic!("{json}") };
        assert!(found.starts_with(expected), "{found}");
    }
}

#[test]
fn window_that_cannot_be_copied_is_refused_with_the_reason() {
    let mut specs = specs(&[[vec![2, 3], vec![2, 3], vec![2, 3]]]);
    specs.list[1].retained = Some(1);
    let json = "{\"BufferSpecs\": [{\"Name\": \".*\", \"ElemSize\": 4, \"DimSpecs\": [{\"start\": \"row\"}, {\"start\": 1}]}]}";
    let specs = Arc::new(specs);
    let spec = slicing(&specs, json).unwrap();
    spec.check_program(&specs).unwrap();
    assert_eq!(spec.names().collect::<Vec<_>>(), ["a", "b", "out"]);
    let parameters = [("row".to_owned(), 1)];
    let (extent, strides) = ([1, 2], [8, 4]);
    let refusal = |index, argument: &Argument<'_>, parameters: &[(String, i64)]| {
        spec.origin(index, argument, parameters).unwrap_err().to_string()
    };
    let fine = array(&extent, &strides, false);
    assert_eq!(spec.origin(1, &fine, &parameters).unwrap(), [1, 1]);
    assert_eq!(spec.origin(2, &fine, &parameters).unwrap(), [1, 1]);
    assert!(refusal(0, &fine, &parameters).contains("input `a` keeps no state on the device"));
    assert!(refusal(1, &fine, &[]).contains("begins at \"row\", which has no value; found []"));
    let turned = array(&extent, &[4, 8], false);
    assert!(refusal(2, &turned, &parameters).contains("a C-contiguous array is expected"));
    assert_eq!(spec.origin(1, &turned, &parameters).unwrap(), [1, 1]);
    assert!(refusal(2, &array(&extent, &strides, true), &parameters).contains("read-only"));
    let half = Argument { item_bytes: 2, ..fine };
    assert!(refusal(1, &half, &parameters).contains("has elements of 4 bytes; the array has 2"));
    assert!(refusal(1, &array(&[2], &[4], false), &parameters).contains("`b` has 2 dims; the array has 1"));
    for row in [-1, 2, i64::MAX, i64::MIN] {
        let beyond = refusal(1, &fine, &[("row".to_owned(), row)]);
        assert!(beyond.contains("is not inside `b` of [2, 3]"), "{beyond}");
    }
    assert!(refusal(7, &fine, &parameters).contains("binding 7 does not exist"));
}

#[test]
fn slicing_spec_is_refused_for_bindings_that_only_look_like_its_own() {
    let made = || Arc::new(specs(&[[vec![2], vec![1], vec![2]]]));
    let (own, alike) = (made(), made());
    let spec = slicing(&own, "{\"BufferSpecs\": []}").unwrap();
    spec.check_program(&own).unwrap();
    assert_eq!(
        spec.check_program(&alike).unwrap_err().to_string(),
        "the slicing specification was made for another program"
    );
}

#[test]
fn state_of_a_program_is_an_input_and_the_output_that_follows_it() {
    let kept = |image: std::sync::Arc<crate::image::Image>| {
        let specs = BindingSpecs::of_arrays(&image).unwrap();
        let kept: Vec<_> = specs.iter().map(|spec| spec.retained).collect();
        (specs.has_state(), kept)
    };
    assert_eq!(kept(crate::echo::retaining()), (true, vec![Some(0), Some(0)]));
    assert_eq!(kept(crate::echo::resizable()), (false, vec![None; 3]));
}

/// Clients keep buffers for the largest combination of shapes. A program with one shape has no such clients.
#[test]
fn output_with_more_room_is_taken_only_where_shapes_differ() {
    let elements = crate::echo::ELEMENTS as usize;
    let variant = |image: std::sync::Arc<crate::image::Image>, room: usize| {
        let specs = BindingSpecs::of_arrays(&image).unwrap();
        let dims = |spec: &BindingSpec| if spec.is_input { [1, elements] } else { [1, room] };
        let shapes: Vec<_> = specs.iter().map(|spec| Some(given(&dims(spec)))).collect();
        specs.variant_of(&shapes).ok()
    };
    for image in [crate::echo::retaining, crate::echo::resizable] {
        assert_eq!(variant(image(), elements), Some(0));
        assert_eq!(variant(image(), elements - 1), None);
    }
    assert_eq!(variant(crate::echo::resizable(), elements + 1), Some(0));
    assert_eq!(variant(crate::echo::retaining(), elements + 1), None);
}
